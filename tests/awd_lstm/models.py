"""Tiny AWD-LSTMs with random weights and without dropout."""

from typing import Any

import torch

from hf_targets import AwdLstmConfig, AwdLstmForCausalLM
from tests.tiny_backbones import VOCAB

NO_DROPOUT = dict.fromkeys(
    ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_dropout"), 0.0
)


def make_config(**fields: Any) -> AwdLstmConfig:
    """Return the configuration of a tiny model."""
    sizes = {"vocab_size": VOCAB, "embedding_size": 16, "hidden_size": 24, "num_hidden_layers": 3}
    return AwdLstmConfig(**{**sizes, **NO_DROPOUT, **fields})


def make_awd_lstm(seed: int = 0, **fields: Any) -> AwdLstmForCausalLM:
    """Return a tiny model in evaluation mode, with weights large enough to remember."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = AwdLstmForCausalLM(make_config(**fields)).eval()
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model
