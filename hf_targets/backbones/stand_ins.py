"""Files of PyTorch with objects of any class, read without running code: stand-ins take the place of the classes."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals


class StandIn:
    """What is left of an object whose class is not loaded: the state that it was saved with, as data."""

    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "StandIn":
        """Return an empty one, whatever its class would have been made of."""
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_training_checkpoint(file: Path) -> dict[str, Any]:
    """Return what a training program has saved: tensors, numbers and texts, and a `StandIn` for any other object.

    A checkpoint of Lightning holds its configuration and tokenizer as objects of other packages, which PyTorch's safe
    reader refuses. Here it gets an empty class for each of them, so that neither the packages nor any function that the
    file names are imported or called.

    Raises:
        ValueError: If the file is not whole, or cannot be read in this way.
    """
    try:
        unknown = get_unsafe_globals_in_checkpoint(file) if zipfile.is_zipfile(file) else []
        with safe_globals([(type(name.rpartition(".")[2], (StandIn,), {}), name) for name in unknown]):
            content = torch.load(file, "cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(  # torch advises to run the code in the file
            f"{file} cannot be read without running code that it names, or is not whole ({type(error).__name__}); "
            "where you trust it, load it with the program that wrote it, and save its `state_dict` and `ema` alone "
            "with torch.save"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a checkpoint by name, got a {type(content).__name__}")
    return content
