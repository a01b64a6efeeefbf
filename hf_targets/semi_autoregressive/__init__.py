"""A Transformer with an LSTM that predicts the next N words at once, one by one or as a sentence curve."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (("AutoModelForCausalLM", "model.SemiAutoregressiveForCausalLM", None),)
