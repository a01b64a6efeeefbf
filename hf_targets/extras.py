"""Optional dependencies, imported where they are used."""

from importlib import import_module
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Return the imported `module`; if it is not installed, raise an error that names the extra of our package with it.

    Raises:
        ImportError: If `module` is not installed. A module that is installed but broken raises its own error.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(
            f"{module} is not installed; in the source of hf_targets run: pip install '.[{extra}]'"
        ) from error
