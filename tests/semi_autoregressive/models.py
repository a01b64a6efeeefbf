"""Tiny models that predict blocks, with random weights."""

from typing import Any

import torch

from hf_targets import SemiAutoregressiveForCausalLM
from tests.tiny_backbones import make_backbone

KINDS: dict[str, dict[str, Any]] = {
    "words": {"ngram_size": 3},
    "curve": {"ngram_size": 3, "curve": {"num_control_points": 5, "degree": 2}},
    "curves": {
        "ngram_size": 3,
        "curve": {"num_control_points": 5, "degree": 2, "num_curves": 2},
        "residual": True,
    },
}
"""To each kind of prediction the fields of its configuration."""

PUBLISHED_CURVES: dict[int, dict[str, int]] = {
    3: {"num_control_points": 18, "degree": 6, "num_curves": 4},
    4: {"num_control_points": 20, "degree": 13, "num_curves": 4},
    5: {"num_control_points": 20, "degree": 7, "num_curves": 6},
}
"""The curves of table 5, by `ngram_size`."""


def make_block_model(kind: str = "words", family: str = "gpt2", seed: int = 0) -> SemiAutoregressiveForCausalLM:
    """Return a tiny model in evaluation mode whose predicted words differ."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = SemiAutoregressiveForCausalLM.from_base(make_backbone(family, seed), **KINDS[kind]).eval()
        for parameter in model.block_decoder.parameters():  # new weights give nearly equal words
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def with_identity_curve(model: SemiAutoregressiveForCausalLM) -> SemiAutoregressiveForCausalLM:
    """Return a model with the weights of one that predicts words, and a curve that is its control points."""
    curve = {"num_control_points": model.config.ngram_size, "degree": 1, "margin": 0.0}
    other = SemiAutoregressiveForCausalLM.from_base(
        model.backbone, ngram_size=model.config.ngram_size, curve=curve
    ).eval()
    other.block_decoder.load_state_dict(model.block_decoder.state_dict())
    return other
