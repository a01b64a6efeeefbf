"""What a checkpoint in the layout of the published MDLM says of its settings, which no tensor tells."""

import warnings
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_targets.backbones.stand_ins import StandIn

SCHEDULES = {
    "loglinear": "log_linear",
    "cosine": "cosine",
    "cosinesqr": "cosine_squared",
    "linear": "linear",
    "geometric": "geometric",
}
"""Our names of noise schedules by the published program's."""

_BY_TOKENIZER = {"gpt2": 50257, "bert-base-uncased": 103}  # GPT-2's has no mask, and the program adds a row
_ROWS_OF_GPT2 = 50258


_DEFAULTS = {"time_conditioning": False, "noise_schedule": "log_linear"}  # what no tensor shows, and changes figures
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys(
        ("max_position_embeddings", "num_attention_heads", "mask_token_id", "num_diffusion_steps"),
        ("a whole number", (int,)),
    ),
    **dict.fromkeys(("dropout", "sigma_min", "sigma_max"), ("a number", (int, float))),
    "time_conditioning": ("true or false", (bool,)),
}


def settings_of_config(published: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of `MdlmConfig` that a published config.json tells.

    Args:
        published: Its content.
        name: Of the checkpoint, for errors.
    Raises:
        ValueError: If the model is of another kind, or trained with what is not supported.
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
    told = {ours: published[theirs] for theirs, ours in names.items() if published.get(theirs) is not None}
    return {**told, **_noise(published, name)}


def settings_of_training(hyper_parameters: Any, name: str) -> dict[str, Any]:
    """Return the fields of `MdlmConfig` that the `hyper_parameters` of a training program's checkpoint tell.

    Args:
        hyper_parameters: The program's configuration, or a mapping with it as `config`, and perhaps `tokenizer`; of
            dictionaries, of OmegaConf's, or of stand-ins for these.
        name: Of the checkpoint, for errors.
    Raises:
        ValueError: If the model is of another kind, or trained with what is not supported.
    """
    config = hyper_parameters if _told(hyper_parameters, "config") is None else _told(hyper_parameters, "config")
    _check_supported(config, name)
    if _told(config, "training", "change_of_variables") and _told(config, "time_conditioning"):
        raise ValueError(
            f"{name} was trained with change_of_variables, so that it is told another time than sigma; only a model "
            "without time_conditioning can be read then"
        )
    paths = {
        "max_position_embeddings": ("model", "length"),
        "num_attention_heads": ("model", "n_heads"),
        "dropout": ("model", "dropout"),
        "time_conditioning": ("time_conditioning",),
    }
    settings = {field: _told(config, *path) for field, path in paths.items()}
    settings["num_diffusion_steps"] = _told(config, "T") or None  # 0 is continuous time
    tokenizer = _told(hyper_parameters, "tokenizer")
    settings["mask_token_id"] = _BY_TOKENIZER.get(str(_told(config, "data", "tokenizer_name_or_path")))
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        mask = tokenizer.mask_token_id
        settings["mask_token_id"] = tokenizer.vocab_size if mask is None else mask
    told = {field: value for field, value in settings.items() if value is not None}
    return {**told, **_noise(config, name)}


def check_kinds(told: Mapping[str, Any], name: str) -> None:
    """Check that settings are whole numbers, numbers, or true or false, as their fields are.

    Raises:
        ValueError: If one is not, as a number written as text.
    """
    for field in (field for field in told if field in _KINDS):
        kind, types = _KINDS[field]
        if type(told[field]) not in types:  # to Python, True is a whole number
            raise ValueError(
                f"{name} says {field}={told[field]!r}, which must be {kind}; give {field}=... to from_published"
            )


def warn_of_untold(known: Mapping[str, Any], name: str) -> None:
    """Warn of settings that a training checkpoint does not tell, nobody gives, and a default stands in for."""
    untold = [field for field in _DEFAULTS if field not in known]
    if untold:
        taken = " and ".join(f"{field}={_DEFAULTS[field]!r}" for field in untold)
        warnings.warn(
            f"{name} does not tell the {' and the '.join(untold)} that it was trained with, and {taken} "
            f"{'are' if len(untold) > 1 else 'is'} taken, which may be wrong; give {' and '.join(untold)} to "
            "from_published",
            stacklevel=3,
        )


def known_mask(vocab_size: int, name: str) -> int:
    """Return the mask's id in a checkpoint that does not tell it.

    Raises:
        ValueError: If the vocabulary is not that of the published model of OpenWebText, whose last row is the mask.
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
        if (found := _told(config, field)) not in (None, *known):
            raise ValueError(
                f"{name} was trained with {field}={found!r}, and only {' and '.join(map(repr, known))} can be read: "
                "any other gives other probabilities"
            )


def _noise(config: Any, name: str) -> dict[str, Any]:
    """Return the schedule of `noise`, a mapping with `type`, or that type itself."""
    found = _told(config, "noise")
    kind = _told(found, "type") if isinstance(found, Mapping) else found
    if kind is None:
        return {}
    if not isinstance(kind, str) or kind not in SCHEDULES:
        raise ValueError(f"{name} was trained with the noise {kind!r}, known are {', '.join(SCHEDULES)}")
    noise: dict[str, Any] = {"noise_schedule": SCHEDULES[kind]}
    if kind in ("linear", "geometric"):  # the others have sigmas in their files, which the program does not read
        sigmas = {key: _told(config, "noise", key) for key in ("sigma_min", "sigma_max")}
        noise |= {key: value for key, value in sigmas.items() if value is not None}
    return noise


def _told(settings: Any, *path: str) -> Any:
    """Return the value at a path, None where there is none, or one that refers to another."""
    for name in path:
        settings = _content(settings)
        if not isinstance(settings, Mapping) or name not in settings:
            return None
        settings = settings[name]
    value = _content(settings)
    return None if isinstance(value, str) and "${" in value else value


def _content(value: Any) -> Any:
    """Return what a stand-in for a container or a value of OmegaConf holds, and anything else as it is."""
    if not isinstance(value, StandIn):
        return value
    state = value.state if isinstance(value.state, dict) else {}
    return state.get("_content", state.get("_val"))
