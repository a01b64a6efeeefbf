"""Richer training targets than the next token, for Hugging Face Transformers."""

import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import lazy_loader

_LINES = re.findall(r"^from \.([\w.]+) import (\w+|\*)", Path(__file__).with_suffix(".pyi").read_text("utf-8"), re.M)
TARGETS = [folder for folder, name in _LINES if name == "*"]
"""The folders whose own `__init__` tells their public names and, in `MODELS`, what is registered."""


def _public_names() -> dict[str, list[str]]:
    """Return the public names by the module or folder that has them."""
    names: dict[str, list[str]] = {}
    for module, name in _LINES:
        names.setdefault(module, []).extend(import_module(f".{module}", __name__).__all__ if name == "*" else [name])
    return names


__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_public_names())
__version__ = version("hf-targets")

from hf_targets.auto import register  # noqa: E402  (models may import the names above)

register(TARGETS)
