"""Causal, encoder-decoder and masked language models with heads that also predict the tokens after the next one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MODELS = (
    ("AutoModelForCausalLM", "causal.MultiTokenForCausalLM", None),
    ("AutoModelForSeq2SeqLM", "seq2seq.MultiTokenForSeq2SeqLM", None),
    ("AutoModelForMaskedLM", "masked.MultiTokenForMaskedLM", None),
)
