"""The class that `AutoModel` loads for a Gaussian diffusion model: it returns the hidden states of the source."""

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.recorded_states import Wanted
from hf_targets.gaussian_diffusion.model import DifformerForConditionalGeneration


class DifformerModel(DifformerForConditionalGeneration):
    """A Gaussian diffusion model with the same weights, which returns what its decoder reads of a source."""

    @can_return_tuple
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutput:
        """Return the encoder's last hidden states, (batch, source, hidden), and what else is asked for."""
        source = self.encode(input_ids, attention_mask, Wanted.of(self.config, output_hidden_states, output_attentions))
        return BaseModelOutput(
            last_hidden_state=source.hidden,  # pyright: ignore[reportArgumentType]
            hidden_states=source.hidden_states,  # pyright: ignore[reportArgumentType]
            attentions=source.attentions,  # pyright: ignore[reportArgumentType]
        )
