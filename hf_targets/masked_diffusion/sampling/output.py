"""What generation from a masked diffusion model returns: the sequences, and what they cost."""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils.generic import ModelOutput


@dataclass
class MaskedDiffusionGenerationOutput(ModelOutput):
    """The output of `generate(return_dict_in_generate=True)`.

    Attributes:
        sequences: The canvas with nothing masked, (batch, length).
        num_evaluations: Calls of the network.
        num_row_evaluations: Rows of all those calls: what the network had to read.
        num_generated_tokens: Masked tokens that were filled.
    """

    sequences: Tensor
    num_evaluations: int | None = None
    num_row_evaluations: int | None = None
    num_generated_tokens: int | None = None

    @property
    def tokens_per_forward(self) -> float:
        """Mean tokens that a row gets from one evaluation of it; 1 is a token at a time."""
        return (self.num_generated_tokens or 0) / max(self.num_row_evaluations or 0, 1)
