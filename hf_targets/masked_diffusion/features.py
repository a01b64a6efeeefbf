"""The class that `AutoModel` loads for a masked diffusion model: it returns hidden states, not logits."""

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.inputs import check_ids, check_segments
from hf_targets.masked_diffusion.inputs import check_batch, check_mask
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion


class MdlmModel(MdlmForMaskedDiffusion):
    """A masked diffusion model with the same weights, which returns the input of its output matrix."""

    @can_return_tuple
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        timesteps: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutput:
        """Return the last hidden states (batch, length, d); see `MdlmForMaskedDiffusion.forward` for the arguments."""
        check_segments(token_type_ids)
        check_batch(input_ids, None, timesteps)
        check_ids(input_ids, self.config.vocab_size, "input_ids")
        check_mask(attention_mask, input_ids)
        wanted = self._wanted(output_hidden_states, output_attentions)
        states = self._states(input_ids.long(), attention_mask, timesteps, **wanted)
        return BaseModelOutput(
            last_hidden_state=states.hidden,  # pyright: ignore[reportArgumentType]
            hidden_states=states.hidden_states,  # pyright: ignore[reportArgumentType]
            attentions=states.attentions,  # pyright: ignore[reportArgumentType]
        )
