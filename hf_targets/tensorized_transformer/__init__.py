"""The Tensorized Transformer: a language model whose attention is a product of three factors, without a softmax."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (("AutoModelForCausalLM", "model.TensorizedTransformerForCausalLM", "backbone.TensorizedTransformerModel"),)
