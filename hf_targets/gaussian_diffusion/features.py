"""The class that `AutoModel` loads for a Gaussian diffusion model: it returns the hidden states of the source."""

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from hf_targets.gaussian_diffusion.model import DifformerForConditionalGeneration


class DifformerModel(DifformerForConditionalGeneration):
    """A Gaussian diffusion model with the same weights, which returns what its decoder reads of a source."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, return_dict: bool | None = None
    ) -> BaseModelOutput:
        """Return the encoder's last hidden states, (batch, source, hidden)."""
        hidden = self.encode(input_ids, attention_mask).hidden
        return BaseModelOutput(last_hidden_state=hidden)  # pyright: ignore[reportArgumentType]
