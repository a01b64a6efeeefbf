"""Causal language models that read and generate phrases, from a vocabulary that is given with each call."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (("AutoModelForCausalLM", "model.DynamicVocabForCausalLM", None),)
