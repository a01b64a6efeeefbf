"""Gaussian diffusion on embeddings for conditional text: Difformer and DINOISER, with sentence curves or without."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (("AutoModelForSeq2SeqLM", "model.DifformerForConditionalGeneration", "model.DifformerModel"),)
