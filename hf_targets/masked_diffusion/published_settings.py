"""The settings in a checkpoint of the published MDLM that do not follow from its tensors."""

import warnings
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_targets.backbones.published import StandIn

SCHEDULES = {
    "loglinear": "log_linear",
    "cosine": "cosine",
    "cosinesqr": "cosine_squared",
    "linear": "linear",
    "geometric": "geometric",
}
"""Our name of each noise schedule, by its name in the published program."""

_BY_TOKENIZER = {"gpt2": 50257, "bert-base-uncased": 103}  # GPT-2 has no mask token, so the program adds a row
_ROWS_OF_GPT2 = 50258
_DEFAULTS = {"time_conditioning": False, "noise_schedule": "log_linear"}  # no tensor shows them
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys(
        ("max_position_embeddings", "num_attention_heads", "mask_token_id", "num_diffusion_steps"),
        ("a whole number", (int,)),
    ),
    **dict.fromkeys(("dropout", "sigma_min", "sigma_max"), ("a number", (int, float))),
    "time_conditioning": ("true or false", (bool,)),
}


def settings_of_config(published: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of `MdlmConfig` that a published config.json has.

    Args:
        published: The content of config.json.
        name: Name of the checkpoint, for errors.
    Raises:
        ValueError: If the model is of another kind, or was trained with an unsupported option.
    """
    _check_supported(published, name)
    names = {
        "model_length": "max_position_embeddings",
        "n_heads": "num_attention_heads",
        "dropout": "dropout",
        "time_conditioning": "time_conditioning",
        "mask_index": "mask_token_id",
        "mask_token_id": "mask_token_id",
    }
    found = {field: published[key] for key, field in names.items() if published.get(key) is not None}
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
    config = (
        hyper_parameters if _value_at(hyper_parameters, "config") is None else _value_at(hyper_parameters, "config")
    )
    _check_supported(config, name)
    if _value_at(config, "training", "change_of_variables") and _value_at(config, "time_conditioning"):
        raise ValueError(
            f"{name} was trained with time_conditioning and change_of_variables, so its blocks read another time than "
            "sigma; give a checkpoint trained without one of the two"
        )
    paths = {
        "max_position_embeddings": ("model", "length"),
        "num_attention_heads": ("model", "n_heads"),
        "dropout": ("model", "dropout"),
        "time_conditioning": ("time_conditioning",),
    }
    settings = {field: _value_at(config, *path) for field, path in paths.items()}
    settings["num_diffusion_steps"] = _value_at(config, "T") or None  # 0 is continuous time
    tokenizer = _value_at(hyper_parameters, "tokenizer")
    settings["mask_token_id"] = _BY_TOKENIZER.get(str(_value_at(config, "data", "tokenizer_name_or_path")))
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        mask = tokenizer.mask_token_id
        settings["mask_token_id"] = tokenizer.vocab_size if mask is None else mask
    found = {field: value for field, value in settings.items() if value is not None}
    return {**found, **_noise(config, name)}


def check_kinds(saved: Mapping[str, Any], name: str) -> None:
    """Check that each setting has the type of its field: a whole number, a number, or true or false.

    Raises:
        ValueError: If a setting has another type, such as a number written as text.
    """
    for field in (field for field in saved if field in _KINDS):
        kind, types = _KINDS[field]
        if type(saved[field]) not in types:  # isinstance would accept True as a whole number
            raise ValueError(
                f"{name} says {field}={saved[field]!r}, which must be {kind}; give {field}=... to from_published"
            )


def warn_of_defaults(known: Mapping[str, Any], name: str) -> None:
    """Warn if settings are neither in a training checkpoint nor given by the caller, so that defaults are used."""
    unknown = [field for field in _DEFAULTS if field not in known]
    if unknown:
        used = " and ".join(f"{field}={_DEFAULTS[field]!r}" for field in unknown)
        warnings.warn(
            f"{name} does not say with which {' and '.join(unknown)} it was trained; {used} "
            f"{'are' if len(unknown) > 1 else 'is'} used, which may be wrong; give {' and '.join(unknown)} to "
            "from_published",
            stacklevel=3,
        )


def known_mask(vocab_size: int, name: str) -> int:
    """Return the mask's id for a checkpoint that does not contain it.

    Raises:
        ValueError: If the vocabulary is not that of the published OpenWebText model, whose last row is the mask.
    """
    if vocab_size != _ROWS_OF_GPT2:
        raise ValueError(
            f"{name} does not say which of its {vocab_size} tokens is the mask, and a wrong one gives wrong "
            "probabilities; give mask_token_id=tokenizer.mask_token_id of the tokenizer that it was trained with, 103 "
            f"for bert-base-uncased, or {vocab_size - 1} where the mask was added as the last row"
        )
    return vocab_size - 1


def _check_supported(config: Any, name: str) -> None:
    for field, known in (("parameterization", ("subs",)), ("backbone", ("dit", "hf_dit"))):
        if (found := _value_at(config, field)) not in (None, *known):
            raise ValueError(
                f"{name} was trained with {field}={found!r}, and only {' and '.join(map(repr, known))} can be read: "
                "with any other value this model computes wrong probabilities"
            )


def _noise(config: Any, name: str) -> dict[str, Any]:
    """Return the fields of the schedule that `noise` names: a mapping with `type`, or the type itself."""
    found = _value_at(config, "noise")
    kind = _value_at(found, "type") if isinstance(found, Mapping) else found
    if kind is None:
        return {}
    if not isinstance(kind, str) or kind not in SCHEDULES:
        raise ValueError(f"{name} was trained with the noise {kind!r}, known are {', '.join(SCHEDULES)}")
    noise: dict[str, Any] = {"noise_schedule": SCHEDULES[kind]}
    if kind in ("linear", "geometric"):  # the program ignores the sigmas of other schedules
        sigmas = {key: _value_at(config, "noise", key) for key in ("sigma_min", "sigma_max")}
        noise |= {key: value for key, value in sigmas.items() if value is not None}
    return noise


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
