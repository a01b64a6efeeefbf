"""Other ways to use a text when a model writes, to compare with: kNN-LM, RETRO, and a larger static vocabulary."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (
    ("AutoModelForCausalLM", "copy_generator.CopyGenerator", None),
    ("AutoModelForCausalLM", "retro.RetroForCausalLM", None),
)
