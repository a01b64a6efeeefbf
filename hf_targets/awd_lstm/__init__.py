"""AWD-LSTM: a language model of LSTM layers with dropped recurrent weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (("AutoModelForCausalLM", "model.AwdLstmForCausalLM", "backbone.AwdLstmModel"),)
