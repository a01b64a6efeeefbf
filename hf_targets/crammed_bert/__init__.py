"""CrammedBERT, a BERT that is quick to pre-train, and its published checkpoints."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (
    ("AutoModelForMaskedLM", "model.CrammedBertForMaskedLM", "backbone.CrammedBertModel"),
    ("AutoModelForSequenceClassification", "model.CrammedBertForSequenceClassification", "backbone.CrammedBertModel"),
)
