"""Checkpoints in the layout of the published MDLM, read and written strictly: every tensor, and no other."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (a mixin: the backbone and PreTrainedModel's methods are its model's)

import re
from collections.abc import Mapping
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor

from hf_targets.models.checkpoint import check_tensors
from hf_targets.models.mdlm.configuration import MdlmConfig
from hf_targets.models.mdlm.layers import rotary_frequencies
from hf_targets.models.published import find_checkpoint, read_tensors

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

        Sizes follow from the tensors; heads, positions, dropout and time conditioning from config.json, where there is
        one.
        No code of the checkpoint is run.

        Args:
            source: A name on the Hub, a folder, a file, or a state dict. One of the training program's checkpoints, as
                `torch.load` gives it, has `ema`, whose `shadow_params` (a list without names) are taken in the order
                of the parameters.
            hub: Where in the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
            config: Fields of `MdlmConfig` to set, such as `curve` or `dropout`. A curve of several (K > 1) has new
                parameters, which are random.
        Raises:
            ValueError: If the file cannot be read, or a tensor is missing, left over or of another shape.
        """
        name, published = "the state dict", {}
        tensors = source
        if not isinstance(source, Mapping):
            name = str(source)
            file, published = find_checkpoint(source, _FILES, hub or {})
            tensors = read_tensors(file)
        assert isinstance(tensors, Mapping)
        tensors = _with_names(tensors, name)
        model = cls(MdlmConfig(**{**_sizes(tensors, name), **_settings(published), **config}))
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


def _settings(published: dict[str, Any]) -> dict[str, Any]:
    """Return what the tensors do not tell of a published config.json."""
    names = {
        "model_length": "max_position_embeddings",
        "n_heads": "num_attention_heads",
        "dropout": "dropout",
        "time_conditioning": "time_conditioning",
    }
    return {ours: published[theirs] for theirs, ours in names.items() if theirs in published}


def _with_names(tensors: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict; of a training program's checkpoint its averaged ones."""
    if "state_dict" not in tensors:
        return dict(tensors)
    state = {key: value for key, value in tensors["state_dict"].items() if key.startswith("backbone.")}
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
