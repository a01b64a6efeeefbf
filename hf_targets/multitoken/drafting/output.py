"""What drafting returns: the sequences, and honest counts."""

from dataclasses import dataclass

from transformers.generation.utils import GenerateDecoderOnlyOutput


@dataclass
class DraftCounts:
    """Counts as they grow; `DraftedGenerationOutput` says what each is."""

    forward_passes: int = 0
    verifications: int = 0
    drafted: int = 0
    accepted: int = 0

    def named(self) -> dict[str, int]:
        """Return them by the names of the output."""
        return {
            "num_forward_passes": self.forward_passes,
            "num_verifications": self.verifications,
            "num_drafted_tokens": self.drafted,
            "num_accepted_tokens": self.accepted,
        }


@dataclass
class DraftedGenerationOutput(GenerateDecoderOnlyOutput):
    """The output of `generate(draft_tokens=..., return_dict_in_generate=True)`.

    Every verification gives one token whatever the drafts are worth, the "bonus" token: it is not a drafted token, and
    not counted as accepted.

    The cache is returned for one row; the rows of a batch are taken out of theirs as they end.

    Attributes:
        num_forward_passes: Calls of the model, the prompt's included.
        num_verifications: Rows times passes after the prompt's, of rows that were not finished: the drafts verified.
        num_drafted_tokens: Tokens drafted and verified, in all rows; in a tree, its nodes.
        num_accepted_tokens: Tokens that entered the text beyond the one that each pass gives anyway.
    """

    num_forward_passes: int | None = None
    num_verifications: int | None = None
    num_drafted_tokens: int | None = None
    num_accepted_tokens: int | None = None

    @property
    def accepted_per_pass(self) -> float:
        """Mean tokens accepted at a verification, the bonus token not counted: in [0, draft_tokens]."""
        return (self.num_accepted_tokens or 0) / max(self.num_verifications or 0, 1)

    @property
    def tokens_per_pass(self) -> float:
        """Mean tokens that a verification brings, the bonus token counted: plain decoding has 1."""
        return 1.0 + self.accepted_per_pass
