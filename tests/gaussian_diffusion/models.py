"""Tiny Gaussian diffusion models, and batches whose noise is given."""

import torch
from datasets import Dataset

from hf_targets import DifformerConfig, DifformerForConditionalGeneration
from tests.tiny_backbones import VOCAB
from tests.tiny_seq2seq import EOS, PAD, pairs

LATENT = 8
KINDS = {
    "difformer": {},
    "dinoiser": {"preset": "dinoiser"},
    "curve": {"curve": {"degree": 2}},
    "curves": {"curve": {"degree": 2, "num_curves": 3}, "preset": "dinoiser"},
    "heads": {"multitoken": {"ngram_size": 3, "loss_weight": 0.6}},
    "heads on a curve": {"multitoken": {"ngram_size": 2, "target": "embedding"}, "curve": {"degree": 2}},
}
"""Fields of the configuration by the name of a kind of model."""


def make_difformer(kind: str = "difformer", seed: int = 0, **config) -> DifformerForConditionalGeneration:
    """Return a model of one of `KINDS` with random weights and without dropout."""
    torch.manual_seed(seed)
    fields = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "latent_size": LATENT,
        "dropout": 0.0,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "initializer_range": 0.2,
        "num_length_classes": 20,
        **KINDS[kind],
        **config,
    }
    return DifformerForConditionalGeneration(DifformerConfig(**fields)).eval()


def noisy_pairs(model: DifformerForConditionalGeneration, num_rows: int = 3, **sizes) -> dict[str, torch.Tensor]:
    """Return pairs with the times and the noise of their texts."""
    batch = pairs(num_rows, **sizes)
    generator = torch.Generator().manual_seed(num_rows)
    uniforms = torch.rand(num_rows, generator=generator)
    noise = torch.randn(*batch["labels"].shape, LATENT, generator=generator)
    return {**batch, "timesteps": model.process.times(uniforms, 0.0), "noise": noise}


def noisy_rows(num_rows: int) -> Dataset:
    """Return pairs with the times and the noise of their texts; their lengths vary."""
    model = make_difformer()
    batches = [noisy_pairs(model, 3, seed=seed) for seed in range(num_rows // 3 + 1)]
    rows = [{name: value[row].tolist() for name, value in batch.items()} for batch in batches for row in range(3)]
    return Dataset.from_list(rows[:num_rows])
