"""What a wrapped model reads in a step of `generate`."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (Transformers mixes generation into some models only)

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

_NOT_FOR_REFORMER = ("position_ids", "logits_to_keep", "next_sequence_length")


def inputs_of_step(
    backbone: PreTrainedModel, input_ids: Tensor, inputs_embeds: Tensor | None, **kwargs: Any
) -> dict[str, Any]:
    """Return the inputs that the backbone prepares for a step, from the arguments of a wrapper."""
    if inputs_embeds is not None:
        kwargs["inputs_embeds"] = inputs_embeds
    if not backbone._supports_default_dynamic_cache():
        # Reformer counts positions itself and cannot pad given ones; it prints arguments that it does not know
        kwargs = {name: value for name, value in kwargs.items() if name not in _NOT_FOR_REFORMER}
    return backbone.prepare_inputs_for_generation(input_ids, **kwargs)
