"""What a model's output embeddings read in its passes: the hidden states before the softmax."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel


@contextmanager
def output_inputs(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Give a list that each pass of the model inside the `with` block adds its states to, (batch, time, d).

    Raises:
        ValueError: If the model has an encoder or no output embeddings.
    """
    layer: Any = model.get_output_embeddings()
    if layer is None or model.config.is_encoder_decoder:
        lack = "no output embeddings" if layer is None else "an encoder, which reads another text"
        raise ValueError(f"{type(model).__name__} has {lack}; give a causal or masked model with its head")
    read: list[Tensor] = []
    inside: list[Tensor] = []  # what a computation inside the layer reads (`call_inside`)

    def keep(_: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(inputs[0], Tensor):
            read.append(inputs[0])
        elif len(inputs) > 1 and isinstance(inputs[1], Tensor) and inputs[1].dim() == 3:
            inside.append(inputs[1])

    def settle(*_: Any) -> None:
        if not read and inside:  # the model never calls the layer itself
            read.append(inside[0])
        inside.clear()

    hooks = layer.register_forward_pre_hook(keep), model.register_forward_hook(settle)
    try:
        yield read
    finally:
        for hook in hooks:
            hook.remove()
