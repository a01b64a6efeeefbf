"""Quantised backbones: a wrapper carries the quantizer, and what a target adds is never quantised."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_targets.backbones.weight_access import execution_device

_SKIPPED = ("modules_to_not_convert", "llm_int8_skip_modules")
"""Names of the field of a quantization configuration that lists modules which stay as they are."""
_READ_BY_OTHERS = ("hf_quantizer", "quantization_method", "is_loaded_in_8bit", "is_loaded_in_4bit")
"""What Transformers and peft read from the outermost model: to save it, and to choose the layers of an adapter."""


def carry_quantizer(model: Any, base: PreTrainedModel, new_part: str) -> None:
    """Give a wrapper the quantizer of its backbone, with the modules that stay as they are by the wrapper's names."""
    quantizer = getattr(base, "hf_quantizer", None)
    if quantizer is None:
        return
    _copy_marks(base, model)
    model.hf_quantizer = copy.copy(quantizer)
    model.config.quantization_config = config = copy.deepcopy(quantizer.quantization_config)
    model.hf_quantizer.quantization_config = config
    skipped = getattr(quantizer, "modules_to_not_convert", None) or []
    for field in [name for name in _SKIPPED if hasattr(config, name)]:
        names = [*skipped, *(f"backbone.{name}" for name in skipped), new_part]  # a name is a suffix or a beginning
        setattr(config, field, sorted({*names, *(getattr(config, field) or [])}))


def share_quantizer(model: Any) -> None:
    """Give the backbone of a loaded wrapper the wrapper's quantizer, so that it can be saved by itself."""
    if getattr(model, "hf_quantizer", None) is not None:
        _copy_marks(model, model.backbone)
        model.backbone.config.quantization_config = model.hf_quantizer.quantization_config


def _copy_marks(source: Any, target: Any) -> None:
    for name in _READ_BY_OTHERS:
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


@torch.no_grad()
def dequantized_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model in which each quantised linear layer is a plain one of the same outputs."""
    plain: dict[int, Any] = {}
    for layer in model.modules():
        if _is_quantized(layer):
            plain[id(layer)] = _plain_layer(layer, model.dtype)
    copied = copy.deepcopy(model, plain)  # which puts these in the place of the layers
    for part in copied.modules():
        if isinstance(part, PreTrainedModel):
            for name in ("quantization_config", "_is_quantized"):
                vars(part.config).pop(name, None)
    return copied


_MODELS = ("torch.nn.", "transformers.models.", "transformers_modules.", "hf_targets.")
"""Where linear layers come from that are not quantised; some models have their own, as Falcon."""


def is_quantized(model: nn.Module) -> bool:
    """Return whether a model has quantised linear layers."""
    return any(map(_is_quantized, model.modules()))


def _is_quantized(layer: nn.Module) -> bool:
    """Return whether a linear layer keeps its weight in another form; an adapter's layer has the linear one inside."""
    if not hasattr(layer, "in_features") or any(True for _ in layer.children()):
        return False
    weight, is_of_a_model = getattr(layer, "weight", None), type(layer).__module__.startswith(_MODELS)
    if not isinstance(layer, nn.Linear) or type(weight) is not nn.Parameter or not is_of_a_model:
        return True
    return not weight.is_floating_point() or weight.element_size() == 1  # float8


def _plain_layer(layer: Any, dtype: torch.dtype) -> nn.Linear:
    """Return the linear layer with the outputs of a quantised one, which are tried on unit vectors."""
    device = execution_device(layer)
    units = torch.eye(layer.in_features, dtype=dtype, device=device)
    bias = getattr(layer, "bias", None)
    rows = layer(units).to(dtype) if bias is None else layer(units).to(dtype) - bias.to(dtype)
    plain = nn.Linear(layer.in_features, layer.out_features, bias=bias is not None, device=device, dtype=dtype)
    plain.weight.copy_(rows.T)
    if bias is not None:
        plain.bias.copy_(bias)
    return plain.train(layer.training)


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that a quantised tensor holds; a plain one holds itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from plain_tensors(getattr(tensor, name))
