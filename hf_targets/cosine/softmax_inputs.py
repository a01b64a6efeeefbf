"""The hidden states that a model's output embeddings read, which the paper on degeneration speaks of."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.output_reading import output_inputs


@torch.no_grad()
def softmax_inputs(
    model: PreTrainedModel, batches: Iterable[dict[str, Tensor]], num_states: int
) -> Float[Tensor, "states dim"]:
    """Return what the output embeddings read at the first positions of a text that are not padding, in float32.

    Args:
        model: A causal or masked model; it is left as it was.
        batches: With `input_ids` (batch, time), and what else the model reads, such as `attention_mask`.
        num_states: How many to return, fewer if the text is shorter.
    Raises:
        ValueError: If `num_states` is less than 1, there is no text, or the model has an encoder or no output
            embeddings, or uses them in a way that cannot be read.
    """
    if num_states < 1:
        raise ValueError(f"num_states must be 1 or more, got {num_states}")
    seen: list[Tensor] = []
    with output_inputs(model) as read, without_dropout(model):
        for batch in batches:
            read.clear()
            model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
            if not read:
                raise ValueError(f"{type(model).__name__} uses its output embeddings in a way that cannot be read")
            kept = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool().flatten()
            seen.append(read[0].flatten(0, -2)[kept.to(read[0].device)].float().cpu())
            if sum(map(len, seen)) >= num_states:
                break
    if not seen:
        raise ValueError("there must be a text to read, got no batch; give a longer one")
    return torch.cat(seen)[:num_states]
