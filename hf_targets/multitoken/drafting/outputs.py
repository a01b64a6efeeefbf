"""The outputs of generation with drafts, with counts of passes and tokens."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput


@dataclass
class DraftCounts:
    """Running counts; `DraftedGenerationOutput` defines each."""

    num_forward_passes: int = 0
    num_verifications: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_by_source: dict[str, int] = field(default_factory=dict)

    def accept(self, counts: Sequence[int], origins: Sequence[tuple[int, str]]) -> None:
        """Count accepted tokens of rows; `origins` are those of a `Draft`."""
        for count, (of_heads, source) in zip(counts, origins or [(sys.maxsize, "")] * len(counts), strict=True):
            self.num_accepted_tokens += count
            for name, number in (("heads", min(count, of_heads)), (source, count - of_heads)):
                if number > 0:
                    self.accepted_by_source[name] = self.accepted_by_source.get(name, 0) + number


@dataclass
class _Counted:
    """The counts of an output of generation with drafts."""

    num_forward_passes: int | None = None
    num_verifications: int | None = None
    num_drafted_tokens: int | None = None
    num_accepted_tokens: int | None = None
    accepted_by_source: dict[str, int] | None = None

    @property
    def draft_report(self) -> dict[str, Any]:
        """What drafts brought, over all rows: `passes` of the model, `tokens` written, `accepted` drafted tokens by
        their source ("heads", "text", "answers", "documents"), and the `share` of tokens that were drafted."""
        tokens = len(self.sequences) + (self.num_verifications or 0) + (self.num_accepted_tokens or 0)  # pyright: ignore
        told = {"passes": self.num_forward_passes, "tokens": tokens, "accepted": self.accepted_by_source or {}}
        return {**told, "share": (self.num_accepted_tokens or 0) / tokens}

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
    """


@dataclass
class DraftedSeq2SeqOutput(_Counted, GenerateEncoderDecoderOutput):
    """The output of an encoder-decoder model's `generate` with drafts; its counts are `DraftedGenerationOutput`'s."""


def plain_output(output: Any, input_ids: Tensor) -> Any:
    """Return the output of decoding without drafts after prompts (batch, time), with its counts if it has names."""
    if isinstance(output, Tensor):
        return output
    passes = output.sequences.shape[1] - input_ids.shape[1]
    counts = DraftCounts(passes, len(input_ids) * (passes - 1))
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
