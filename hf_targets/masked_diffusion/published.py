"""Checkpoints in the layout of the published MDLM: a missing or extra tensor is an error."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (a mixin: the model defines the backbone and the methods of PreTrainedModel)

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_targets.backbones.published import StandIn, Translation, load_published, num_layers
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.layers import rotary_frequencies

_EMBEDDING, _OUR_EMBEDDING = "backbone.vocab_embed.embedding", "backbone.vocab_embed.weight"
_FREQUENCIES = "backbone.rotary_emb.inv_freq"
_TIME = "backbone.sigma_map.mlp.0.weight"
_CURVES = "backbone.curves."  # a curve adds them; the published model has none
_SCHEDULES = {"loglinear": "log_linear", "cosine": "cosine", "cosinesqr": "cosine_squared"}
"""Our name of each noise schedule, by its name in the published program."""
_MASKS = {"gpt2": 50257, "bert-base-uncased": 103}  # GPT-2 has no mask token, so the program adds a row
_ROWS_OF_GPT2 = 50258
_DEFAULTS = {"time_conditioning": False, "noise_schedule": "log_linear"}  # no tensor shows them
_OF_CONFIG = {
    "model_length": "max_position_embeddings",
    "n_heads": "num_attention_heads",
    "dropout": "dropout",
    "time_conditioning": "time_conditioning",
    "mask_index": "mask_token_id",
    "mask_token_id": "mask_token_id",
}
"""Names in a published config.json, and ours."""


class PublishedMdlm:
    """`from_published` and `to_published` of a masked diffusion model.

    The published tensors have the same names as ours, except two. `backbone.vocab_embed.embedding` is renamed.
    `backbone.rotary_emb.inv_freq` is computed here, and must be that of rotary positions of base 10,000.
    """

    made_by = "from_published"

    @classmethod
    def from_published(
        cls, source: str | PathLike | Mapping[str, Any], *, hub: Mapping[str, Any] | None = None, **config: Any
    ) -> Self:
        """Return a model with the weights of a published checkpoint, such as "kuleshov-group/mdlm-owt".

        Sizes follow from the tensors. The number of heads (unless there are rotary frequencies), positions, dropout,
        time conditioning, noise and the mask's id come from the `hyper_parameters` of a training checkpoint, else from
        config.json. If neither has them, time conditioning is off and noise log-linear, with a warning for a training
        checkpoint. A model that was trained in discrete time is used in continuous time.

        Args:
            source: A name on the Hub, a folder, a file, or a state dict; or a checkpoint of the training program: a
                `.ckpt` file or the output of `torch.load` for it. The `shadow_params` of its `ema` are used, in the
                order of the parameters; without them its raw weights, with a warning.
            hub: Options of the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
            config: Fields of `MdlmConfig` to set, such as `curve`, and `dtype`. K > 1 curves have new parameters.
                `mask_token_id` is needed if the checkpoint does not contain it, unless it has the 50,258 rows of the
                published OpenWebText model.
        Raises:
            ValueError: If the file cannot be read; if a tensor is missing, left over or of another shape; if the mask
                or the number of heads is unknown; or if the model was trained with an unsupported option.
        """
        if config.get("mask_token_id", ...) is None:  # not given, so the checkpoint's id is used
            del config["mask_token_id"]
        return load_published(
            cls,
            source,
            _translate,
            config,
            files=("model.safetensors", "pytorch_model.bin"),
            hub=hub,
            needs={"num_attention_heads": "12 for the published models of width 768"},
            new_parts=(_CURVES,),
        )

    def to_published(self) -> dict[str, Tensor]:
        """Return a state dict with the names and shapes of the published layout.

        Raises:
            ValueError: If the layout cannot hold the model's layers, a causal model's, or parameters of K > 1 curves.
        """
        state = {_EMBEDDING if key == _OUR_EMBEDDING else key: value for key, value in self.state_dict().items()}
        own = [key for key in state if key.startswith(_CURVES)]
        if own or self.config.backbone is not None:
            what = ", ".join(own) or "a model whose layers have no modulation"
            raise ValueError(f"the published layout cannot hold {what}; save the model with save_pretrained")
        return {**state, _FREQUENCIES: _frequencies(self.config)}


def _frequencies(config: MdlmConfig) -> Tensor:
    return rotary_frequencies(config.hidden_size // config.num_attention_heads)


def _translate(
    content: Mapping[str, Any], settings: Mapping[str, Any], given: Mapping[str, Any], name: str
) -> Translation:
    trained = settings_of_training(content.get("hyper_parameters"), name)
    saved = {**_settings_of_config(settings, name), **trained}
    found = _tensors(content, name)
    if "state_dict" in content and (untold := [field for field in _DEFAULTS if field not in {**saved, **given}]):
        used = " and ".join(f"{field}={_DEFAULTS[field]!r}" for field in untold)
        warnings.warn(
            f"{name} does not say with which {' and '.join(untold)} it was trained; {used} is used, which may be "
            "wrong; give it to from_published",
            stacklevel=4,
        )
    vocab_size, hidden_size = found[_EMBEDDING].shape
    fields: dict[str, Any] = {"vocab_size": vocab_size, "hidden_size": hidden_size, "cond_dim": len(found[_TIME])}
    fields["num_hidden_layers"] = num_layers(found, "backbone.blocks.")
    if _FREQUENCIES in found:
        fields["num_attention_heads"] = hidden_size // (2 * len(found[_FREQUENCIES]))
    fields = {**fields, **saved, **given}
    if "mask_token_id" not in fields:
        if vocab_size != _ROWS_OF_GPT2:
            raise ValueError(
                f"{name} does not say which of its {vocab_size} tokens is the mask; give mask_token_id, that of the "
                f"tokenizer that it was trained with: 103 for bert-base-uncased, {vocab_size - 1} for an added last row"
            )
        fields["mask_token_id"] = vocab_size - 1

    def tensors(config: MdlmConfig) -> dict[str, Tensor]:
        renamed = {_OUR_EMBEDDING if key == _EMBEDDING else key: tensor for key, tensor in found.items()}
        own, expected = renamed.pop(_FREQUENCIES, None), _frequencies(config)
        if own is not None and (
            own.shape != expected.shape or not torch.allclose(own.float(), expected, rtol=1e-2, atol=1e-6)
        ):
            raise ValueError(
                f"{name} has rotary frequencies {tuple(own.shape)} that differ from those of base 10,000 with "
                f"num_attention_heads={config.num_attention_heads}; give the number of heads that it was trained with"
            )
        return renamed

    return Translation(fields, tensors)


def _tensors(content: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or the averaged tensors of a training program's checkpoint."""
    state = content.get("state_dict", content)
    weights = {key: value for key, value in state.items() if str(key).startswith("backbone.")}
    for key in (_EMBEDDING, _TIME):
        if key not in weights:
            raise ValueError(
                f"{name} is not in the published layout of MDLM: it has no {key} but {', '.join(list(state)[:4])}; "
                "take off what its names begin with, or load a model saved by save_pretrained with from_pretrained"
            )
    if "state_dict" not in content:
        return dict(state)  # a tensor of another name is told as one too many
    shadow = (content.get("ema") or {}).get("shadow_params")
    if shadow is None:
        warnings.warn(
            f"{name} has no averaged weights (`ema`); its raw weights are used, which are worse", stacklevel=5
        )
        return weights
    parameters = [key for key in weights if key != _FREQUENCIES]
    if [weights[key].shape for key in parameters] != [tensor.shape for tensor in shadow]:
        raise ValueError(
            f"the averaged weights of {name} have no names and are taken in the order of its {len(parameters)} "
            f"parameters, and {len(shadow)} of them do not fit; leave `ema` out to take the weights themselves"
        )
    return {**weights, **dict(zip(parameters, shadow, strict=True))}


def _settings_of_config(published: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of `MdlmConfig` that a published config.json has."""
    _check_supported(published, name)
    found = {field: published[key] for key, field in _OF_CONFIG.items() if published.get(key) is not None}
    return {**found, **_noise(published, name)}


def settings_of_training(hyper_parameters: Any, name: str) -> dict[str, Any]:
    """Return the fields of `MdlmConfig` that the `hyper_parameters` of a training program's checkpoint have.

    Args:
        hyper_parameters: The program's configuration, or a mapping with this as `config` and perhaps a `tokenizer`. The
            mappings may be dictionaries, objects of OmegaConf, or stand-ins for these.
        name: Name of the checkpoint, for errors.
    Raises:
        ValueError: If the model is of another kind, or was trained with an unsupported option.
    """
    nested = _value_at(hyper_parameters, "config")
    config = hyper_parameters if nested is None else nested
    _check_supported(config, name)
    if _value_at(config, "training", "change_of_variables") and _value_at(config, "time_conditioning"):
        raise ValueError(
            f"{name} was trained with time_conditioning and change_of_variables, so its blocks read another time than "
            "sigma; give a checkpoint trained without one of the two"
        )
    tokenizer = _value_at(hyper_parameters, "tokenizer")
    mask = _MASKS.get(str(_value_at(config, "data", "tokenizer_name_or_path")))
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        mask = tokenizer.vocab_size if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    settings = {
        "max_position_embeddings": _value_at(config, "model", "length"),
        "num_attention_heads": _value_at(config, "model", "n_heads"),
        "dropout": _value_at(config, "model", "dropout"),
        "time_conditioning": _value_at(config, "time_conditioning"),
        "mask_token_id": mask,
    }
    return {**{field: value for field, value in settings.items() if value is not None}, **_noise(config, name)}


def _check_supported(config: Any, name: str) -> None:
    for field, known in (("parameterization", ("subs",)), ("backbone", ("dit", "hf_dit"))):
        if (found := _value_at(config, field)) not in (None, *known):
            raise ValueError(
                f"{name} was trained with {field}={found!r}, and only {' and '.join(map(repr, known))} can be read"
            )


def _noise(config: Any, name: str) -> dict[str, Any]:
    """Return the schedule that `noise` names: a mapping with `type`, or the type itself."""
    found = _value_at(config, "noise")
    kind = _value_at(found, "type") if isinstance(found, Mapping) else found
    if kind is None:
        return {}
    if str(kind) not in _SCHEDULES:
        raise ValueError(f"{name} was trained with the noise {kind!r}, known are {', '.join(_SCHEDULES)}")
    return {"noise_schedule": _SCHEDULES[str(kind)]}


def _value_at(settings: Any, *path: str) -> Any:
    """Return the value at a path of keys; None if there is none, or if it only refers to another value."""
    for name in path:
        settings = _content(settings)
        if not isinstance(settings, Mapping) or name not in settings:
            return None
        settings = settings[name]
    value = _content(settings)
    return None if isinstance(value, str) and "${" in value else value


def _content(value: Any) -> Any:
    """Return the content of a stand-in for an OmegaConf container or value; return other objects unchanged."""
    if not isinstance(value, StandIn):
        return value
    state = value.state if isinstance(value.state, dict) else {}
    return state.get("_content", state.get("_val"))
