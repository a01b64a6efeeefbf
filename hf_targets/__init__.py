"""Richer training targets than the next token, for Hugging Face Transformers."""

from importlib.metadata import version

import lazy_loader

from hf_targets.auto import register
from hf_targets.moved import keep_old_places

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names are in __init__.pyi
__version__ = version("hf-targets")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


keep_old_places()
register()
