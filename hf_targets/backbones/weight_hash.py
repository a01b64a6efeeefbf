"""The identity of a model: a hash of all that its outputs depend on, which is the same in every process."""

import json
from typing import Any

import torch
import xxhash
from torch import nn

from hf_targets.backbones.quantization import plain_tensors
from hf_targets.backbones.weight_access import is_sharded, whole_state_dict

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "architectures", "dtype")
_OF_A_CALL = ("use_cache", "output_attentions", "output_hidden_states", "return_dict")


def weight_hash(model: nn.Module, *, settings: bool = True, rounded_to: torch.dtype | None = None) -> str:
    """Return a hash of a model's weights, its configuration, and the adapters of peft in use: 32 hexadecimal digits.

    The device, the active autocast type and the files that the model came from do not matter. GPT-2 takes 50 ms.

    Args:
        settings: Whether the configuration and the adapters count; False: only the weights do.
        rounded_to: Round numbers to this type first. With bfloat16 a model has the same hash in float32, float64 and
            bfloat16, as it is loaded with other arguments; in float16 only if it was saved in float16 or bfloat16.
            None: other types are other models.
    Raises:
        ValueError: If processes share the weights, as under FSDP2 or ZeRO-3: none of them has the model.
    """
    if is_sharded(model):
        raise ValueError(f"weights of {type(model).__name__} are sharded over processes; load the model whole")
    told: list[Any] = []
    if settings:
        parts: Any = list(model.modules())
        configs = {id(part.config): part.config for part in parts if hasattr(getattr(part, "config", None), "to_dict")}
        told = [[_settings(config) for config in configs.values()], adapters_in_use(model)]
    digest = xxhash.xxh3_128(json.dumps(told, sort_keys=True, default=str).encode())
    for name, weight in sorted(whole_state_dict(model).items()):
        if rounded_to is not None and weight.is_floating_point():
            weight = weight.to(rounded_to)
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        for plain in plain_tensors(weight.detach()):
            digest.update(plain.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _settings(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration that outputs depend on, without what the weights say themselves."""
    ignored = {*_NOT_OF_THE_MODEL, *_OF_A_CALL}
    return {name: value for name, value in config.to_dict().items() if name not in ignored}


def adapters_in_use(model: nn.Module) -> list[tuple[str, ...]]:
    """Return for each layer of peft which adapters are on, which are merged, and their scales."""
    told = ("disable_adapters", "active_adapters", "merged_adapters", "scaling")
    return [
        (name, *(str(getattr(layer, field, None)) for field in told))
        for name, layer in model.named_modules()
        # looked up in the class, which is faster; a method of Transformers' models has that name
        if isinstance(getattr(type(layer), "disable_adapters", None), property)
    ]
