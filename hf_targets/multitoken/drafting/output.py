"""The output of generation with drafts: the sequences, and counts of passes and drafted tokens."""

from dataclasses import dataclass
from typing import Any

from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput


@dataclass
class DraftCounts:
    """Running counts; `DraftedGenerationOutput` defines each."""

    forward_passes: int = 0
    verifications: int = 0
    drafted: int = 0
    accepted: int = 0

    def named(self) -> dict[str, int]:
        """Return the counts under the names of `DraftedGenerationOutput`."""
        return {
            "num_forward_passes": self.forward_passes,
            "num_verifications": self.verifications,
            "num_drafted_tokens": self.drafted,
            "num_accepted_tokens": self.accepted,
        }


@dataclass
class _Counted:
    """The counts of an output of generation with drafts."""

    num_forward_passes: int | None = None
    num_verifications: int | None = None
    num_drafted_tokens: int | None = None
    num_accepted_tokens: int | None = None

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
    """The output of `generate(draft_tokens=..., return_dict_in_generate=True)`.

    Every verification yields one token that was not drafted, the "bonus" token. It is not counted as accepted.

    The cache is returned only for a single row: rows of a batch leave its cache when they end.

    Attributes:
        num_forward_passes: Calls of the model, including the one that reads the prompt.
        num_verifications: Drafts verified: the number of unfinished rows, summed over all passes after the prompt's.
        num_drafted_tokens: Tokens drafted and verified, over all rows; in a tree, every node counts.
        num_accepted_tokens: Drafted tokens that were accepted into the text, over all rows.
    """


@dataclass
class DraftedSeq2SeqOutput(_Counted, GenerateEncoderDecoderOutput):
    """The output of an encoder-decoder model's `generate` with drafts; its counts are `DraftedGenerationOutput`'s."""


def drafted_output(
    counts: DraftCounts, *, is_encoder_decoder: bool, **output: Any
) -> DraftedGenerationOutput | DraftedSeq2SeqOutput:
    """Return an output of `generate` with the counts of its drafts."""
    kind: Any = DraftedSeq2SeqOutput if is_encoder_decoder else DraftedGenerationOutput
    return kind(**output, **counts.named())
