"""Tiny masked diffusion models, plain and with curves, whose predictions are far from uniform."""

import torch

from hf_targets import CurveConfig, MdlmConfig, MdlmForMaskedDiffusion
from tests.tiny_backbones import VOCAB, make_backbone

MASK = VOCAB - 1
CURVES = {
    "plain": None,
    "curve": {"degree": 2},
    "curves": {"degree": 2, "num_curves": 3},
    "hidden": {"degree": 2, "place": "hidden"},
    "hidden_curves": {"degree": 2, "place": "hidden", "num_curves": 2},
    "short": {"num_control_points_ratio": 0.5, "degree": 2, "rank_deficient": "pseudo_inverse"},
}
"""Configurations of the curve by the name of a kind of model."""


def make_mdlm(kind: str = "plain", seed: int = 0, **config) -> MdlmForMaskedDiffusion:
    """Return a model of one of `CURVES`, with random weights everywhere, the modulation and the output included."""
    torch.manual_seed(seed)
    curve = CURVES[kind]
    fields = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 16,
        "cond_dim": 8,
        "dropout": 0.0,
        "curve": None if curve is None else CurveConfig(**curve),
        **config,
    }
    model = MdlmForMaskedDiffusion(MdlmConfig(**fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "adaLN" in name or "output_layer.linear" in name:
                parameter.normal_(0.0, 0.3)
            elif ".scorer." in name:
                parameter.normal_(0.0, 0.5)
    return model.eval()


def make_from_causal(kind: str = "plain", family: str = "llama", **config) -> MdlmForMaskedDiffusion:
    """Return a tiny causal model as a diffusion model with one of `CURVES`."""
    base = make_backbone(family, max_position_embeddings=16)
    curve = CURVES[kind]
    return MdlmForMaskedDiffusion.from_causal(base, mask_token_id=MASK, curve=curve, **config).eval()


def clean_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random token ids, none of them the mask or 0."""
    return torch.randint(1, MASK, shape, generator=torch.Generator().manual_seed(seed))


def masked_ids(*shape: int, seed: int = 0, share: float = 0.5) -> torch.Tensor:
    """Return a canvas: token ids, a share of them masks."""
    generator = torch.Generator().manual_seed(seed + 1)
    return clean_ids(*shape, seed=seed).masked_fill(torch.rand(shape, generator=generator) < share, MASK)


def masked_batch(rows: int = 3, length: int = 9, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a canvas with its clean labels and times; the first token of each row is given and no target."""
    canvas, labels = masked_ids(rows, length, seed=seed), clean_ids(rows, length, seed=seed)
    canvas[:, 0], labels[:, 0] = labels[:, 0], -100
    return {"input_ids": canvas, "labels": labels, "timesteps": torch.linspace(0.3, 0.9, rows)}
