"""PyTorch files that hold objects of any class, read without running code: empty classes replace the real ones."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals


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
    reader rejects. This function gives the reader an empty class for each of them. So no package that the file names is
    imported, and no function is called.

    Raises:
        ValueError: If the file is not whole, cannot be read in this way, or does not hold a dictionary.
    """
    try:
        unknown = get_unsafe_globals_in_checkpoint(file) if zipfile.is_zipfile(file) else []
        with safe_globals([(type(name.rpartition(".")[2], (StandIn,), {}), name) for name in unknown]):
            content = torch.load(file, "cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(  # torch's message advises running code in the file
            f"{file} cannot be read without running code that it names, or is not whole ({type(error).__name__}); "
            "if you trust it, load it with the program that wrote it, and save its `state_dict` and `ema` alone "
            "with torch.save"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{file} must hold a checkpoint by name, got a {type(content).__name__}; save a dictionary with torch.save"
        )
    return content
