"""The tensors of a checkpoint in the layout of the published MDLM, and the sizes that follow from them."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

EMBEDDING = "backbone.vocab_embed.embedding"
FREQUENCIES = "backbone.rotary_emb.inv_freq"
_TIME = "backbone.sigma_map.mlp.0.weight"
_NUM_NAMES = 4


def is_training_checkpoint(content: Mapping[str, Any]) -> bool:
    """Return whether this is a checkpoint of the training program; otherwise it is a state dict."""
    return "state_dict" in content


def published_tensors(content: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or the averaged tensors of a training program's checkpoint.

    Args:
        content: A state dict, or a checkpoint of the training program.
        name: Name of the checkpoint, for errors.
    Raises:
        ValueError: If a part has another type, the model is another one, or the averaged weights do not fit.
    """
    if not is_training_checkpoint(content):
        return _checked(content, name, f"{name} must hold tensors")
    state = content["state_dict"]
    if not isinstance(state, Mapping):
        raise ValueError(
            f"the state_dict of {name} must be tensors by name, got a {type(state).__name__}; give the checkpoint as "
            "the training program saved it"
        )
    weights = {key: value for key, value in state.items() if str(key).startswith("backbone.")}
    weights = _checked(weights or state, name, f"the state_dict of {name} must hold tensors")
    parameters = [key for key in weights if key != FREQUENCIES]
    shadow = _averaged(content.get("ema"), name)
    if shadow is None:
        warnings.warn(
            f"{name} has no averaged weights (`ema`); its raw weights are used, which are worse; give a checkpoint "
            "with `ema`, if you have one",
            stacklevel=3,
        )
        return weights
    shapes = [(tuple(weights[key].shape), tuple(value.shape)) for key, value in zip(parameters, shadow, strict=False)]
    if len(shadow) != len(parameters) or any(own != averaged for own, averaged in shapes):
        raise ValueError(
            f"the averaged weights of {name} have no names and are taken in the order of its {len(parameters)} "
            f"parameters, and {len(shadow)} of them do not fit; leave `ema` out to take the weights themselves"
        )
    return {**weights, **dict(zip(parameters, shadow, strict=True))}


def sizes_of(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of `MdlmConfig` that follow from the shapes of `published_tensors`."""
    vocab_size, hidden_size = tensors[EMBEDDING].shape
    numbers = [int(match[1]) for key in tensors if (match := re.match(r"backbone\.blocks\.(\d+)\.", key))]
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": max(numbers, default=-1) + 1,
        "cond_dim": tensors[_TIME].shape[0],
    }
    if FREQUENCIES in tensors:
        sizes["num_attention_heads"] = hidden_size // (2 * len(tensors[FREQUENCIES]))
    return sizes


def _checked(state: Mapping[str, Any], name: str, rule: str) -> dict[str, Tensor]:
    """Return a state dict, after checks that it holds only tensors and has those from which the sizes follow."""
    for key in (EMBEDDING, _TIME):
        if key not in state:
            raise ValueError(f"{name} is not in the published layout of MDLM: {_instead(state, key)}")
    if foreign := [key for key, value in state.items() if not isinstance(value, Tensor)]:
        raise ValueError(f"{rule}, and {foreign[0]} is not a tensor; leave out what is not a weight")
    for key, num, dimensions in (
        (EMBEDDING, 2, "two dimensions"),
        (_TIME, 2, "two dimensions"),
        (FREQUENCIES, 1, "one dimension"),
    ):
        if key in state and (state[key].dim() != num or not state[key].numel()):
            raise ValueError(f"{key} of {name} must have {dimensions}, got the shape {tuple(state[key].shape)}")
    return dict(state)


def _instead(state: Mapping[str, Any], missing: str) -> str:
    """Return the end of an error about a missing tensor: what the state dict has instead, and the way out."""
    keys = [str(key) for key in state]
    wrapped = next((key for key in keys if key.endswith("." + missing)), None)
    if wrapped is not None:
        prefix = wrapped.removesuffix(missing)
        return (
            f"its names begin with {prefix!r}, as in {wrapped}; take it off: "
            f"{{name.removeprefix({prefix!r}): tensor for name, tensor in state_dict.items()}}"
        )
    found = f"{', '.join(keys[:_NUM_NAMES])} ..." if keys else "nothing"
    return f"it has no {missing} but {found}; a model saved by save_pretrained is loaded with from_pretrained"


def _averaged(ema: Any, name: str) -> list[Tensor] | None:
    """Return the averaged weights of a training checkpoint; None if it has none."""
    way_out = "leave `ema` out to take the weights themselves"
    if not isinstance(ema, Mapping | None):
        raise ValueError(f"`ema` of {name} must be a mapping with shadow_params, got a {type(ema).__name__}; {way_out}")
    shadow = (ema or {}).get("shadow_params")
    if shadow is None:
        return None
    rule = f"the shadow_params of {name} must be a list of tensors"
    if not isinstance(shadow, list | tuple):
        raise ValueError(f"{rule}, got a {type(shadow).__name__}; {way_out}")
    if foreign := [value for value in shadow if not isinstance(value, Tensor)]:
        raise ValueError(f"{rule}, and one is a {type(foreign[0]).__name__}; {way_out}")
    return list(shadow)
