"""What a model's output matrix reads in its passes: the hidden states before the softmax, after any transform."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.output_matrix import output_embedding, rounding_of
from hf_targets.backbones.weight_access import execution_device, num_rows


@contextmanager
def output_inputs(
    model: PreTrainedModel, *, with_encoder: bool = False, with_logits: bool = True
) -> Iterator[list[Tensor]]:
    """Give a list that each pass of the model inside the `with` block adds its states to, (batch, time, d).

    Args:
        with_encoder: Whether the model may have an encoder; the states are then the decoder's.
        with_logits: Otherwise the output embeddings, where the model calls them, multiply nothing.
    Raises:
        ValueError: If the model has no output embeddings, or an encoder that it may not have.
    """
    layer: Any = model.get_output_embeddings()
    if layer is None or (model.config.is_encoder_decoder and not with_encoder):
        lack = "no output embeddings" if layer is None else "an encoder, which reads another text"
        raise ValueError(f"{type(model).__name__} has {lack}; give a causal or masked model with its head")
    with _read_by(layer, with_logits=with_logits) as (read, inside):

        def settle(*_: Any) -> None:
            if not read and inside:  # the model never calls the layer itself
                read.append(inside[0])
            inside.clear()

        hook = model.register_forward_hook(settle)
        try:
            yield read
        finally:
            hook.remove()


@torch.compiler.disable(recursive=False)  # its hook is made for one call
def read_masked(backbone: PreTrainedModel, *, with_logits: bool, **inputs: Any) -> tuple[Tensor, Any]:
    """Return what the output matrix of a masked model reads, (batch, time, d), and the outputs of the model.

    Args:
        with_logits: Whether the outputs have logits; otherwise the matrix multiplies nothing.
        inputs: Arguments of the model, without labels.
    """
    with _read_by(output_embedding(backbone), with_logits=with_logits) as (read, _):
        outputs = backbone(**inputs, return_dict=True)
    return read[0], outputs


@contextmanager
def _read_by(layer: nn.Module, *, with_logits: bool) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Give two lists, which get what each call of a layer in this thread reads, and each computation inside it.

    The latter are those of `call_inside`, with states (batch, time, d).
    """
    read, inside, owner = [], [], threading.get_ident()

    @torch.compiler.disable  # it asks for the thread
    def keep(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != owner:
            return None
        if not isinstance(inputs[0], Tensor):
            inside.extend(part for part in inputs[1:2] if isinstance(part, Tensor) and part.dim() == 3)
            return None
        read.append(inputs[0])
        return None if with_logits else (inputs[0][:, :0].detach(), *inputs[1:])

    hook = layer.register_forward_pre_hook(keep)  # pyright: ignore[reportArgumentType]
    try:
        yield read, inside
    finally:
        hook.remove()


@torch.no_grad()
def check_masked_backbone(backbone: PreTrainedModel) -> None:
    """Try on a few tokens that a model reads them from both sides, and that its logits come from its output matrix.

    Raises:
        ValueError: If it has an encoder beside its text, reads only the text before a token, or if its logits are
            anything else than its output matrix applied once, such as a soft cap after it.
    """
    name = type(backbone).__name__
    if backbone.config.is_encoder_decoder:
        raise ValueError(f"{name} has an encoder; choose a masked model")
    layer = output_embedding(backbone)
    device = execution_device(layer)
    if device.type == "meta" or layer.weight.numel() == 0:
        return  # not loaded yet, or sharded
    ids = _trial_ids(backbone, num_rows(layer)).to(device)
    other = ids.clone()
    other[:, 1] = ids[:, 2]
    with without_dropout(backbone), _read_by(layer, with_logits=True) as (read, _):
        logits = [backbone(input_ids=text, return_dict=True).logits for text in (ids, other)]
    if len(read) != 2:
        raise ValueError(f"{name} does not call its output matrix once a pass, as our heads do; choose another model")
    if torch.equal(read[0][:, 0], read[1][:, 0]):
        raise ValueError(f"{name} reads only the tokens before a position: it is causal; choose a masked model")
    product, given = layer(read[0]).float(), logits[0].float()
    is_product = product.shape == given.shape and float((product - given).abs().max()) <= rounding_of(layer, given)
    if not is_product:
        raise ValueError(
            f"{name} changes its logits after its output matrix (a soft cap, a scale, a bias), which heads cannot "
            "share; choose another model"
        )


def _trial_ids(backbone: PreTrainedModel, vocab_size: int) -> Tensor:
    """Return the first token ids (1, 8) that are no padding, by which some models tell the length of a text."""
    padding = {getattr(backbone.config, name, None) for name in ("pad_token_id", "pad_index")}
    known = [id_ for id_ in range(vocab_size) if id_ not in padding]
    return torch.tensor([(known * 8)[:8]])
