"""Checkpoint files in the layouts of other programs: found in a folder or on the Hub, and read without running code."""

import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from hf_targets.backbones.checkpoint import HUB_ARGUMENTS, check_tensors

Model = TypeVar("Model", bound=PreTrainedModel)


@dataclass(frozen=True)
class Translation:
    """A checkpoint of a published program in our words.

    Attributes:
        fields: Fields of the configuration that the checkpoint tells.
        tensors: Returns the tensors by our names, for the configuration of the model.
        new_parts: Beginnings of the names of parameters that this checkpoint lacks, and that are new.
    """

    fields: Mapping[str, Any]
    tensors: Callable[[Any], dict[str, Tensor]]
    new_parts: tuple[str, ...] = ()


Translate = Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], str], Translation]
"""From a checkpoint's content, that of the file of settings beside it, the fields given, and its name for errors."""


def load_published(
    cls: type[Model],
    source: str | os.PathLike[str] | Mapping[str, Any],
    translate: Translate,
    given: Mapping[str, Any],
    *,
    files: Sequence[str],
    configs: Sequence[str] = ("config.json",),
    hub: Mapping[str, Any] | None = None,
    needs: Mapping[str, str] | None = None,
    new_parts: tuple[str, ...] = (),
) -> Model:
    """Return a model with the weights of a published program's checkpoint, in evaluation mode; no code of it is run.

    Args:
        source: A file, a folder, a name on the Hub, or what is in the file.
        translate: Makes fields and tensors of ours of the content.
        given: Fields of the configuration that come before those of the checkpoint, and `dtype` as `from_pretrained`
            takes it ("auto": that of the checkpoint; None: float32).
        files: Names of the file in a folder; the first that exists is taken.
        configs: Names of the file of settings beside it.
        hub: Options of the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
        needs: Fields without which there is no model, and what to give where the checkpoint does not tell them.
        new_parts: Beginnings of the names of parameters that a published model does not have.
    Raises:
        ValueError: If the file cannot be read; if a tensor is missing, left over or of another shape; or if a field is
            unknown or missing.
    """
    given = dict(given)
    dtype = given.pop("dtype", None)
    chosen_dtype(dtype)
    config_class: Any = cls.config_class
    if unknown := given.keys() - config_class.__dataclass_fields__.keys() - {"num_labels", "id2label"}:
        raise ValueError(f"no such field of {config_class.__name__}: {', '.join(sorted(unknown))}")
    name, content, settings = "the checkpoint", source, {}
    if not isinstance(source, Mapping):
        name = str(source)
        file, settings = find_checkpoint(source, files, hub or {}, configs=configs)
        content = read_tensors(file) if file.suffix in (".safetensors", ".bin") else read_training_checkpoint(file)
    assert isinstance(content, Mapping)
    translation = translate(content, settings, given, name)
    fields = {**translation.fields, **given}
    for field, hint in (needs or {}).items():
        if field not in fields:
            raise ValueError(f"{name} does not tell its {field}; give {field}, {hint}")
    model = cls(config_class(**fields))
    tensors = translation.tensors(model.config)
    are_new = (*new_parts, *translation.new_parts)
    shapes = {key: value.shape for key, value in model.state_dict().items() if not key.startswith(are_new)}
    check_tensors(name, tensors, shapes)
    model.load_state_dict(tensors, strict=False)
    return model.to(chosen_dtype(dtype, tensors) or model.dtype).eval()  # pyright: ignore[reportArgumentType]


def check_options(options: Mapping[str, Any], must_be: Mapping[str, tuple[Any, Any]], name: str) -> None:
    """Raise a ValueError if a model was trained with another option than ours is.

    Args:
        must_be: What each option must be, and what it is where it is not among the options.
    """
    for option, (needed, default) in must_be.items():
        if (value := options.get(option, default)) != needed:
            raise ValueError(
                f"{name} was trained with {option}={value!r}, and this model has {option}={needed!r} only; use the "
                "program that trained it"
            )


def rename(name: str, beginnings: Mapping[str, str]) -> str:
    """Return the name of a tensor with the first of the beginnings that it has replaced, or as it is."""
    begin = next((begin for begin in beginnings if name.startswith(begin)), "")
    return beginnings.get(begin, "") + name.removeprefix(begin)


def num_layers(tensors: Mapping[str, Any], prefix: str) -> int:
    """Return how many layers there are, as the numbers after a beginning of names such as `"decoder.layers."` tell."""
    matches = (re.match(re.escape(prefix) + r"(\d+)\.", name) for name in tensors)
    return max((int(match[1]) for match in matches if match), default=-1) + 1


def find_checkpoint(
    name: str | os.PathLike,
    files: Sequence[str],
    hub: Mapping[str, Any],
    *,
    configs: Sequence[str] = ("config.json",),
) -> tuple[Path, dict[str, Any]]:
    """Return the weight file of a checkpoint, and the content of the file of settings beside it, {} without one.

    Args:
        name: A folder, a repository of the Hub, or the file of weights itself.
        files, configs: Possible names of the files; the first that exists is taken.
        hub: Location on the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
    Raises:
        ValueError: If none of the files exists, settings are cut short, or `hub` has an unknown argument.
    """
    if unknown := set(hub) - set(HUB_ARGUMENTS):
        raise ValueError(f"no such argument: {', '.join(sorted(unknown))}; there are {', '.join(HUB_ARGUMENTS)}")
    is_path = str(name).startswith((".", "~", "/")) or str(name).count("/") > 1  # no name of a repository
    if is_path and not Path(name).exists():
        raise ValueError(f"there is no file or folder at {name}; give the path of a checkpoint, or a name on the Hub")
    find = partial(cached_file, name, _raise_exceptions_for_missing_entries=False, **hub)
    local = Path(name).is_file()
    file = name if local else next(filter(None, map(find, files)), None)
    if file is None:
        raise ValueError(f"{name} holds none of {', '.join(files)}; give the file of weights itself")
    places = (Path(name).with_name(config) if local else find(config) for config in configs)
    beside = next((Path(place) for place in places if place and Path(place).is_file()), None)
    return Path(file), {} if beside is None else _read_config(beside)


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not whole JSON: {error}; copy or download it again") from error
    return config


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a PyTorch file that holds only tensors; no code is run.

    Raises:
        ValueError: If the file is not whole, or holds other objects.
    """
    try:
        tensors = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a whole file of tensors: {error}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:  # its message advises running code in the file
        raise ValueError(f"{file} is not a whole file of tensors ({type(error).__name__})") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError(f"{file} must hold tensors by name and nothing else, got a {type(tensors).__name__}")
    return tensors


class StandIn:
    """An object whose class was not loaded; it holds only the state that the object was saved with."""

    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "StandIn":
        """Return an empty object; ignore the arguments that were saved for the real class."""
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_training_checkpoint(file: Path) -> dict[str, Any]:
    """Return the checkpoint of a training program: tensors, numbers and texts, and a `StandIn` for any other object.

    A checkpoint of Lightning holds its configuration and tokenizer as objects of other packages, which PyTorch's safe
    reader rejects. Empty classes replace theirs: no package that the file names is imported, and no function is called.

    Raises:
        ValueError: If the file is not whole, cannot be read in this way, or does not hold a dictionary.
    """
    try:
        unknown = get_unsafe_globals_in_checkpoint(file) if zipfile.is_zipfile(file) else []
        with safe_globals([(type(name.rpartition(".")[2], (StandIn,), {}), name) for name in unknown]):
            content = torch.load(file, "cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(  # torch's message advises running code in the file
            f"{file} cannot be read without running code, or is not whole ({type(error).__name__}); if you trust it, "
            "load it with the program that wrote it, and save its `state_dict` and `ema` alone with torch.save"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a checkpoint by name, got a {type(content).__name__}")
    return content


def chosen_dtype(dtype: Any, of_checkpoint: Mapping[str, Any] | None = None) -> torch.dtype | None:
    """Return the type of numbers that a model is loaded with, for a type, its name, "auto" or None (of new models).

    Args:
        of_checkpoint: Tensors that tell the type of "auto"; None, where only `dtype` is to be checked.
    """
    if dtype is None:
        return None
    if dtype == "auto":
        tensors = (tensor for tensor in (of_checkpoint or {}).values() if isinstance(tensor, Tensor))
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type such as torch.bfloat16, 'auto' or None, got {dtype!r}")
    return found
