"""Masked diffusion language models (MDLM), plain or with a sentence curve."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (("AutoModelForMaskedLM", "model.MdlmForMaskedDiffusion", "model.MdlmModel"),)
