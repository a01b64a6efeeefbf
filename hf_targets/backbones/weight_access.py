"""Access to a layer's weights outside of its own `forward`, also if they are offloaded or sharded."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, cast

import torch
from accelerate.utils.modeling import get_state_dict_offloaded_model
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import distribute_tensor

from hf_targets.maths.losses import IGNORED, soft_capped, weighted_cross_entropy


class _BorrowedLayer(nn.Module):
    """A module that shares all attributes of a layer, among them parameters and hooks, but has another `forward`.

    An attribute that a hook sets on this module (DeepSpeed counts gradients there) is therefore set on the layer. The
    user's hooks run too, and get the arguments of `_compute`.
    """

    __slots__ = ("_layer",)
    _compiled_call_impl = property(lambda self: None)  # pyright: ignore  # else a compiled layer runs its own forward

    def __init__(self, layer: nn.Module) -> None:
        object.__setattr__(self, "__dict__", layer.__dict__)
        object.__setattr__(self, "_layer", layer)

    @property
    def forward(self) -> Callable[..., Any]:  # a property: accelerate sets `forward` on the layer
        """The computation with the weights; `__call__` runs the hooks that load and unload them around it."""
        return self._compute

    def _compute(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        offloading = self.__dict__.get("_hf_hook")
        if offloading is None:
            with gathered(self):
                return compute(*_weights(self._layer), *arguments)
        arguments, _ = offloading.pre_forward(self, *arguments)
        return offloading.post_forward(self, compute(*_weights(self._layer), *arguments))


def call_inside(layer: nn.Module, compute: Callable[..., Any], *arguments: Any) -> Any:
    """Return compute(weight, bias, *arguments), run as if it were a call of the layer.

    accelerate's offloading, FSDP2 and ZeRO-3 keep a weight elsewhere. Hooks on a call of its module load it; at any
    other time it is an empty tensor, a shard, or on the device "meta".

    Args:
        layer: An embedding, or another layer with a `weight` and perhaps a `bias`.
        compute: A function that uses the weight and the bias, and nothing else of the layer.
        arguments: Other arguments of `compute`, among them all tensors that need gradients, so that FSDP sees them.
    """
    if torch.compiler.is_compiling():  # hooks, and a module made inside the graph, would break it
        return compute(*_weights(layer), *arguments)
    return _BorrowedLayer(layer)(compute, *arguments)


def gathered(*modules: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which weights that ZeRO-3 has sharded are whole, if no hook loads them yet.

    Models loaded under ZeRO-3 have such weights until DeepSpeed initialises its engine. They get no gradient here.
    """
    sharded = [
        parameter
        for module in modules
        for parameter in module.parameters()
        if hasattr(parameter, "ds_id") and not parameter.numel()
    ]
    return import_module("deepspeed").zero.GatheredParameters(sharded) if sharded else nullcontext()


def trains_rows(layer: nn.Module) -> bool:
    """Return whether peft trains some rows of a layer, as `TrainableTokensConfig` says."""
    return hasattr(layer, "trainable_tokens_delta")


def _weights(layer: Any) -> tuple[Tensor | None, Tensor | None]:
    if trains_rows(layer) and not layer.disable_adapters:
        return layer.get_merged_weights(layer.active_adapters), None
    return whole_tensor(layer.weight), whole_tensor(getattr(layer, "bias", None))


def whole_tensor(tensor: Any) -> Any:
    """Return a tensor; one that is split over processes, which all call this, is gathered, its gradient split again.

    One of a class that holds quantised numbers is dequantised: such classes compute products, and little else.
    """
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor()
    return tensor.dequantize() if hasattr(tensor, "__tensor_flatten__") else tensor


@torch.no_grad()
def copy_whole(target: Any, tensor: Tensor) -> None:
    """Copy a whole tensor, which all processes have, into one that may be split over them."""
    if hasattr(target, "full_tensor"):
        shards = target.device_mesh, target.placements
        tensor = distribute_tensor(tensor.to(target.device), *shards, src_data_rank=None)
    target.copy_(tensor)


def reshard(module: nn.Module) -> None:
    """Let FSDP2 drop the whole weights that it keeps after a pass without gradients, before their shards change."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def execution_device(module: nn.Module) -> torch.device:
    """Return the device on which a module computes: that of its first weight, or the one accelerate will load it to."""
    for part in module.modules():
        device = getattr(getattr(part, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
        for parameter in part.parameters(recurse=False):
            return parameter.device
    return torch.device("cpu")


def is_readable(module: nn.Module) -> bool:
    """Return whether all weights of a module can be read directly: they are neither offloaded nor sharded."""
    return not (is_sharded(module) or any(parameter.is_meta for parameter in module.parameters()))


def is_sharded(module: nn.Module) -> bool:
    """Return whether processes share the weights of a module, by tensor parallelism, FSDP2 or ZeRO-3."""
    return any(hasattr(parameter, "to_local") or hasattr(parameter, "ds_id") for parameter in module.parameters())


def whole_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a module, including weights that accelerate has offloaded."""
    if is_readable(module):
        return module.state_dict()
    offloading: Any = getattr(module, "_hf_hook", None)  # accelerate leaves out what belongs to the module itself
    if offloading is not None:
        offloading.pre_forward(module)
    own = {name: tensor.clone() for name, tensor in module.state_dict().items() if "." not in name}
    if offloading is not None:
        offloading.post_forward(module, None)
    return {**own, **get_state_dict_offloaded_model(module)}


def num_rows(layer: nn.Module) -> int:
    """Return V, the rows of an input or output embedding, also if its weight is offloaded or peft has wrapped it."""
    while not isinstance(layer, nn.Linear | nn.Embedding) and hasattr(layer, "base_layer"):
        layer = cast(nn.Module, layer.base_layer)  # of LoRA
    while not isinstance(layer, nn.Linear | nn.Embedding) and hasattr(layer, "original_module"):
        layer = cast(nn.Module, layer.original_module)  # of modules_to_save, or of trainable_token_indices
    if isinstance(layer, nn.Linear):
        shape = layer.weight.shape  # Marian's `out_features` is stale after a change of its vocabulary
        is_whole = len(shape) == 2 and shape[1] == layer.in_features  # neither sharded nor packed
        return shape[0] if is_whole else layer.out_features
    if isinstance(layer, nn.Embedding):
        return layer.num_embeddings
    quantized = getattr(layer, "out_features", None)  # whose weight is packed
    return len(cast(Tensor, layer.weight)) if quantized is None else quantized


def embedding_rows(layer: nn.Linear, ids: Tensor) -> Tensor:
    """Return the rows (..., d) of an output matrix for token ids (...), without a gradient."""
    return call_inside(layer, lambda weight, _, ids: nn.functional.embedding(ids, weight.detach()), ids)


def weighted_output_cross_entropy(
    layer: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    row_weights: Tensor,
    *,
    label_smoothing: float = 0.0,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `weighted_cross_entropy` of hidden states (..., d) and targets (...); the losses in the targets' shape.

    Args:
        layer: The output embedding. One that is no plain linear layer, as with an adapter on it or quantized, gives
            all logits at once.
        row_weights: (...), constants.
        cap: Of the logits, as `soft_capped` bounds them; None: none.
    """
    if not (isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward):
        logits = layer(hidden).flatten(0, -2)
        logits = soft_capped(logits.to(torch.promote_types(logits.dtype, torch.float32)), cap)
        given = {"ignore_index": IGNORED, "reduction": "none", "label_smoothing": label_smoothing}
        losses = nn.functional.cross_entropy(logits, targets.flatten(), **given)
        return (losses * row_weights.flatten()).sum(), losses.detach().view(targets.shape)
    arguments = hidden.flatten(0, -2), targets.flatten(), row_weights.flatten(), label_smoothing, cap
    total, losses = call_inside(layer, _weighted_losses, *arguments)
    return total, losses.view(targets.shape)


def _weighted_losses(
    weight: Tensor,
    bias: Tensor | None,
    hidden: Tensor,
    targets: Tensor,
    row_weights: Tensor,
    label_smoothing: float,
    cap: float | None,
) -> tuple[Tensor, Tensor]:
    how = {"label_smoothing": label_smoothing, "cap": cap}
    return weighted_cross_entropy(hidden, weight, targets, row_weights, bias, **how)
