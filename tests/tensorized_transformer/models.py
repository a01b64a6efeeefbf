"""Tiny Tensorized Transformers with random weights and without dropout, and heads on them."""

from typing import Any

import torch

from hf_targets import MultiTokenForCausalLM, TensorizedTransformerConfig, TensorizedTransformerForCausalLM
from tests.tiny_backbones import VOCAB

SEGMENT = 4


def make_config(**fields: Any) -> TensorizedTransformerConfig:
    """Return the configuration of a tiny model."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "head_dim": 6}
    return TensorizedTransformerConfig(**{**sizes, "segment_length": SEGMENT, "dropout": 0.0, **fields})


def make_tensorized(seed: int = 0, **fields: Any) -> TensorizedTransformerForCausalLM:
    """Return a tiny model in evaluation mode, whose attention matters as much as what it is added to."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = TensorizedTransformerForCausalLM(make_config(**fields)).eval()
        for parameter in model.parameters():
            parameter.add_(0.25 * torch.randn_like(parameter))
    return model


def make_heads(target: str, ngram_size: int = 4, **fields: Any) -> MultiTokenForCausalLM:
    """Return heads on a tiny model."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return MultiTokenForCausalLM.from_base(make_tensorized(**fields), ngram_size=ngram_size, target=target).eval()
