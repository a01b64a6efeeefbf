"""The outputs of generation with drafts, with counts of passes and tokens."""

from dataclasses import dataclass

from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput


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
