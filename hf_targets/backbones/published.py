"""Checkpoint files in the layouts of other programs: found in a folder or on the Hub, and read without running code."""

import json
import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals
from transformers.utils.hub import cached_file

from hf_targets.backbones.checkpoint import HUB_ARGUMENTS


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
        files: Possible names of the file; the first that exists is taken.
        hub: Location on the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
        configs: Possible names of the file of settings; the first that exists is taken.
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
    except ValueError as error:
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
    """Return the type of numbers that a model is loaded with; None for that of new models.

    Args:
        dtype: None, a type or its name, or "auto" for that of the checkpoint.
        of_checkpoint: Its tensors; None, where only `dtype` is to be checked.
    Raises:
        ValueError: If it is no type of floating-point numbers.

    >>> chosen_dtype("bfloat16")
    torch.bfloat16
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
