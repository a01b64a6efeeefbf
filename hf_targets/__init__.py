"""Richer training targets than the next token, for Hugging Face Transformers."""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names are in __init__.pyi
__version__ = version("hf-targets")

from hf_targets.auto import register  # noqa: E402  (models may import the names above)

register()
