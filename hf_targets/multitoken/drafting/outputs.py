"""The outputs of generation with drafts, with counts of passes and tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from operator import eq
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from hf_targets.multitoken.drafting.drafts import Draft, Found


@dataclass
class DraftCounts:
    """Running counts; `DraftedGenerationOutput` defines each."""

    num_forward_passes: int = 0
    num_verifications: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to the seconds of a part."""
        start = perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - start

    def accept(self, draft: Draft, accepted: Sequence[Sequence[int]]) -> None:
        """Count the tokens of a draft that were accepted in each row; those that were looked up too count as such."""
        for tokens, (kept, found) in zip(accepted, draft.found or [(0, Found([], ""))] * len(accepted), strict=True):
            looked_up = sum(takewhile(bool, map(eq, tokens[kept:], found.tokens)))
            self.num_accepted_tokens += len(tokens)
            for name, number in ((draft.by, len(tokens) - looked_up), (found.source, looked_up)):
                if number:
                    self.accepted_by_source[name] = self.accepted_by_source.get(name, 0) + number


@dataclass
class _Counted:
    """The counts of an output of generation with drafts."""

    num_forward_passes: int | None = None
    num_verifications: int | None = None
    num_drafted_tokens: int | None = None
    num_accepted_tokens: int | None = None
    accepted_by_source: dict[str, int] | None = None
    seconds: dict[str, float] | None = None

    @property
    def draft_report(self) -> dict[str, Any]:
        """What drafts brought, over all rows: `passes` of the model, `tokens` written, `accepted` drafted tokens by
        their source ("heads", "assistant", "text", "answers", "documents"), the `share` of tokens that were drafted,
        and the shares of `time` after the prompt that "drafts" and "passes" took; none without drafts."""
        tokens = len(self.sequences) + (self.num_verifications or 0) + (self.num_accepted_tokens or 0)  # pyright: ignore
        told = {"passes": self.num_forward_passes, "tokens": tokens, "accepted": self.accepted_by_source or {}}
        parts = dict(self.seconds or {})
        whole = parts.pop("all", 0.0)
        time = {part: seconds / whole for part, seconds in parts.items()}
        return {**told, "share": (self.num_accepted_tokens or 0) / tokens, "time": time}

    @property
    def accepted_per_pass(self) -> float:
        """Mean accepted tokens per verification, without the bonus token; at most the length of a draft."""
        return (self.num_accepted_tokens or 0) / max(self.num_verifications or 0, 1)

    @property
    def tokens_per_pass(self) -> float:
        """Mean new tokens per verification, with the bonus token; plain decoding has 1."""
        return 1.0 + self.accepted_per_pass


@dataclass
class DraftedGenerationOutput(_Counted, GenerateDecoderOnlyOutput):
    """The output of `generate(..., return_dict_in_generate=True)` with `draft_tokens`, or by `draft()`.

    Every verification yields one token that was not drafted, the "bonus" token. It is not counted as accepted.

    The cache is returned only for a single row: rows of a batch leave its cache when they end.

    Attributes:
        num_forward_passes: Calls of the model, including the one that reads the prompt.
        num_verifications: Drafts verified: the number of unfinished rows, summed over all passes after the prompt's.
        num_drafted_tokens: Tokens drafted and verified, over all rows; in a tree, every node counts.
        num_accepted_tokens: Drafted tokens that were accepted into the text, over all rows.
        accepted_by_source: These by what drafted them, as `draft_report` has them.
        seconds: After the prompt, of "drafts" (heads and lookup), "passes" of the model, and "all". A GPU's passes are
            only launched in theirs; what remains has the wait for them.
    """


@dataclass
class DraftedSeq2SeqOutput(_Counted, GenerateEncoderDecoderOutput):
    """The output of an encoder-decoder model's `generate` with drafts; its counts are `DraftedGenerationOutput`'s."""


def plain_output(output: Any, input_ids: Tensor, end_tokens: Sequence[int] | int | None) -> Any:
    """Return the output of decoding without drafts after prompts (batch, time), with its counts if it has names."""
    if isinstance(output, Tensor):
        return output
    new = output.sequences[:, input_ids.shape[1] :]
    is_end = torch.isin(new, torch.tensor([] if end_tokens is None else end_tokens, device=new.device)).long()
    written = int((is_end.cumsum(dim=1) == is_end).sum())  # up to the first end token of each row
    counts = DraftCounts(new.shape[1], written - len(new))
    return with_counts({**output}, counts, is_encoder_decoder=hasattr(output, "decoder_hidden_states"))


def with_counts(
    fields: dict[str, Any], counts: DraftCounts, *, is_encoder_decoder: bool
) -> DraftedGenerationOutput | DraftedSeq2SeqOutput:
    """Return the output of `generate` with its counts, no entries: Whisper's `generate` splits those by row."""
    kind: Any = DraftedSeq2SeqOutput if is_encoder_decoder else DraftedGenerationOutput
    output = kind(**fields)
    for name, count in asdict(counts).items():
        object.__setattr__(output, name, count)
    return output
