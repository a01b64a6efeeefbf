"""The output of generation from a masked diffusion model: the sequences, and the number of evaluations."""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils.generic import ModelOutput


@dataclass
class MaskedDiffusionGenerationOutput(ModelOutput):
    """The output of `generate(return_dict_in_generate=True)`.

    Attributes:
        sequences: The filled canvas, (batch, length).
        num_evaluations: Number of calls of the network.
        num_row_evaluations: Number of rows in all these calls together.
        num_generated_tokens: Number of masked positions that were filled.
    """

    sequences: Tensor
    num_evaluations: int | None = None
    num_row_evaluations: int | None = None
    num_generated_tokens: int | None = None

    @property
    def tokens_per_forward(self) -> float:
        """The mean number of tokens that one evaluation of a row unmasks."""
        return (self.num_generated_tokens or 0) / max(self.num_row_evaluations or 0, 1)
