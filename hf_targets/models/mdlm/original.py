"""Checkpoints in the layout of the published MDLM, read and written strictly: every tensor, and no other."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (a mixin: the backbone and PreTrainedModel's methods are its model's)

import re
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from hf_targets.models.checkpoint import check_tensors
from hf_targets.models.mdlm.configuration import MdlmConfig
from hf_targets.models.mdlm.layers import rotary_frequencies
from hf_targets.models.mdlm.published_settings import known_mask, settings_of_config, settings_of_training
from hf_targets.models.published import find_checkpoint, read_tensors
from hf_targets.models.stand_ins import read_training_checkpoint

_EMBEDDING, _THEIR_EMBEDDING = "backbone.vocab_embed.weight", "backbone.vocab_embed.embedding"
_FREQUENCIES = "backbone.rotary_emb.inv_freq"
_FILES = ("model.safetensors", "pytorch_model.bin")
_CURVE = "backbone.curves."  # what a curve adds, and the published model has not


class OriginalLayout:
    """`from_original` and `to_original` of a masked diffusion model.

    The published tensors have our names, but for `backbone.vocab_embed.embedding`, and `backbone.rotary_emb.inv_freq`,
    which is computed here and must be that of rotary positions of base 10,000.
    """

    made_by = "from_original"

    @classmethod
    def from_original(
        cls,
        source: str | PathLike | Mapping[str, Any],
        *,
        hub: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Return a model with the weights of a published checkpoint, such as "kuleshov-group/mdlm-owt".

        Sizes follow from the tensors. Heads (unless there are rotary frequencies), positions, dropout, time
        conditioning and the mask's id are those of a training checkpoint's `hyper_parameters`, else those of
        config.json. Noise is that of `hyper_parameters`, else log-linear, as config.json has none. `config` goes over
        all, with a warning where it differs in anything but dropout. No code of the checkpoint is run.

        Args:
            source: A name on the Hub, a folder, a file, or a state dict. One of the training program's checkpoints, a
                `.ckpt` file or what `torch.load` gives of it, has `ema`, whose `shadow_params` (a list without names)
                are taken in the order of the parameters.
            hub: Where in the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
            config: Fields of `MdlmConfig` to set, such as `curve` or `dropout`. A curve of several (K > 1) has new
                parameters, which are random. `mask_token_id` is needed where the checkpoint does not tell it, unless
                it has the 50,258 rows of the published model of OpenWebText.
        Raises:
            ValueError: If the file cannot be read, a tensor is missing, left over or of another shape, nothing tells
                the mask or the number of heads, or the model was trained with what is not supported.
        """
        name, published = "the state dict", {}
        tensors = source
        if not isinstance(source, Mapping):
            name = str(source)
            file, published = find_checkpoint(source, _FILES, hub or {})
            tensors = _read(file)
        assert isinstance(tensors, Mapping)
        trained = settings_of_training(tensors.get("hyper_parameters"), name)
        told = {**settings_of_config(published), **trained}
        tensors = _with_names(tensors, name)
        model = cls(MdlmConfig(**_fields(_sizes(tensors, name), told, config, name)))
        ours = {_EMBEDDING if key == _THEIR_EMBEDDING else key: tensor for key, tensor in tensors.items()}
        _check_frequencies(ours.pop(_FREQUENCIES, None), model.config, name)
        shapes = {key: tensor.shape for key, tensor in model.state_dict().items() if not key.startswith(_CURVE)}
        check_tensors(name, ours, shapes)
        model.load_state_dict(ours, strict=False)
        return model.eval()

    def to_original(self) -> dict[str, Tensor]:
        """Return a state dict in the published layout, with its names and shapes.

        Raises:
            ValueError: If the model is folded, or has curves of its own parameters (K > 1): that layout has no place
                for them.
        """
        if self.config.folded:
            raise ValueError("a folded model has no modulation to write; save the model that it was folded from")
        state = {_THEIR_EMBEDDING if key == _EMBEDDING else key: value for key, value in self.state_dict().items()}
        if own := [key for key in state if key.startswith(_CURVE)]:
            raise ValueError(
                f"the published layout has no place for {', '.join(own)}; save the model with save_pretrained"
            )
        return {**state, _FREQUENCIES: _frequencies(self.config)}


def _frequencies(config: MdlmConfig) -> Tensor:
    return rotary_frequencies(config.hidden_size // config.num_attention_heads)


def _check_frequencies(found: Tensor | None, config: MdlmConfig, name: str) -> None:
    if found is None:
        return
    expected = _frequencies(config)
    if found.shape != expected.shape or not torch.allclose(found.float(), expected, rtol=1e-2, atol=1e-6):
        raise ValueError(
            f"{name} has other rotary frequencies ({tuple(found.shape)}) than base 10,000 gives with "
            f"num_attention_heads={config.num_attention_heads}; give the number of heads that it was trained with"
        )


def _read(file: Path) -> dict[str, Any]:
    return read_tensors(file) if file.suffix in (".safetensors", ".bin") else read_training_checkpoint(file)


def _fields(sizes: dict[str, Any], told: dict[str, Any], given: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the configuration: what is given, else told by the checkpoint, else by its tensors."""
    other = [key for key in given if key in told and given[key] != told[key] and key != "dropout"]
    if other:
        warnings.warn(
            f"{name} was trained with {', '.join(f'{key}={told[key]!r}' for key in other)}, and "
            f"{', '.join(f'{key}={given[key]!r}' for key in other)} is taken, as given; leave it out to have the model "
            "as it was trained",
            stacklevel=3,
        )
    if "noise_schedule" in given:
        told = {key: value for key, value in told.items() if not key.startswith("sigma_")}
    fields = {**sizes, **told, **given}
    if "num_attention_heads" not in fields:
        raise ValueError(
            f"{name} has neither rotary frequencies nor settings that tell its attention heads; give "
            "num_attention_heads, 12 for the published models of width 768"
        )
    if fields.get("mask_token_id") is None:
        fields["mask_token_id"] = known_mask(sizes["vocab_size"], name)
    return fields


def _with_names(tensors: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict; of a training program's checkpoint its averaged ones."""
    if "state_dict" not in tensors:
        return dict(tensors)
    state = {key: value for key, value in tensors["state_dict"].items() if key.startswith("backbone.")}
    if foreign := [key for key, value in state.items() if not isinstance(value, Tensor)]:
        raise ValueError(f"the state_dict of {name} must hold tensors, and {foreign[0]} is none")
    shadow = (tensors.get("ema") or {}).get("shadow_params")
    if shadow is None:
        return state
    parameters = [key for key in state if key != _FREQUENCIES]
    shapes = [(tuple(state[key].shape), tuple(value.shape)) for key, value in zip(parameters, shadow, strict=False)]
    if len(shadow) != len(parameters) or any(one != other for one, other in shapes):
        raise ValueError(
            f"the averaged weights of {name} have no names and are taken in the order of its {len(parameters)} "
            f"parameters, and {len(shadow)} of them do not fit; leave `ema` out to take the weights themselves"
        )
    return {**state, **dict(zip(parameters, shadow, strict=True))}


def _sizes(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Return the fields of a configuration that the shapes tell."""
    for key in (_THEIR_EMBEDDING, "backbone.sigma_map.mlp.0.weight"):
        if key not in tensors:
            raise ValueError(
                f"{name} is not in the published layout of MDLM: it has no {key} but {', '.join(list(tensors)[:4])} "
                "...; a model saved by save_pretrained is loaded with from_pretrained"
            )
    vocab_size, hidden_size = tensors[_THEIR_EMBEDDING].shape
    numbers = [int(match[1]) for key in tensors if (match := re.match(r"backbone\.blocks\.(\d+)\.", key))]
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": max(numbers, default=-1) + 1,
        "cond_dim": tensors["backbone.sigma_map.mlp.0.weight"].shape[0],
    }
    if _FREQUENCIES in tensors:
        sizes["num_attention_heads"] = hidden_size // (2 * len(tensors[_FREQUENCIES]))
    return sizes
