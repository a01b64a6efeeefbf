"""Checkpoints as the published program of DINOISER writes them, and what that program computes with them."""

import json
import math
from argparse import Namespace

import torch
from torch import nn
from torch.nn import functional as F

HEADS, SIZE, LATENT, FEED_FORWARD, LAYERS, POSITIONS, WORDS, SOURCE_WORDS = 2, 16, 8, 24, 2, 30, 20, 23


def published_options(**changed) -> Namespace:
    """Return options as the checkpoint for IWSLT14 has them, at a small size; changed ones may be of the layers."""
    layers = {
        "hidden_dim": SIZE,
        "ffn_dim": FEED_FORWARD,
        "time_conditional_layernorm": False,
        "num_heads": HEADS,
        "enc_num_layers": LAYERS,
        "enc_prenorm": False,
        "dec_num_layers": LAYERS,
        "dec_prenorm": False,
        "dec_causal": False,
    }
    embeddings = {
        "hidden_dim": LATENT,
        "embedding_init_std": 1e-3,
        "normalized_embedding": True,
        "inf_num_layers": 0,
        "gen_num_layers": 0,
        "std": 0,
    }
    options = {
        "arch": "iwslt_base_postnorm",
        "scheduler": "interchangable",
        "dropout": 0.2,
        "latent_dim": LATENT,
        "vae_type": "vae",
        "half_time_embedding_dim": 128,
        "diffusion_model_type": "transformer",
        "model_output_type": "x0",
        "partial_diffusion": False,
        "self_conditioning": True,
        "length_predict_type": "difference",
        "length_model_type": "classification",
    }
    for part in (layers, embeddings):
        part.update({name: changed.pop(name) for name in tuple(changed) if name in part})
    configs = {"diffusion_model_config": json.dumps(layers), "vae_config": json.dumps(embeddings)}
    return Namespace(**{**options, **configs, **changed})


class Program(nn.Module):
    """The modules of the program under its names."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        layer = {"dim_feedforward": FEED_FORWARD, "dropout": 0.0, "activation": F.gelu, "batch_first": True}
        self.encoder = nn.Module()
        layers = nn.TransformerEncoderLayer(SIZE, HEADS, **layer)
        self.encoder.encoder = nn.TransformerEncoder(layers, LAYERS, nn.LayerNorm(SIZE), enable_nested_tensor=False)
        self.encoder.enc_token_embed = nn.Embedding(SOURCE_WORDS, SIZE, padding_idx=1)
        self.encoder.enc_pos_embed = nn.Embedding(POSITIONS, SIZE)
        self.encoder.register_buffer("position_ids", torch.arange(POSITIONS)[None])
        self.decoder = nn.Module()
        self.decoder.pos_embedding = nn.Embedding(POSITIONS, SIZE)
        self.decoder.trm = nn.TransformerDecoder(nn.TransformerDecoderLayer(SIZE, HEADS, **layer), LAYERS)
        self.decoder.norm = nn.LayerNorm(SIZE)
        self.vae = nn.Module()
        self.vae.embedding = nn.Embedding(WORDS, LATENT)
        self.vae.register_buffer("position_ids", torch.arange(POSITIONS)[None])
        self.timeW = nn.Parameter(torch.randn(128) * 16, requires_grad=False)
        self.bottleneck = nn.Module()
        self.bottleneck.time_proj = nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, SIZE))
        self.bottleneck.up_sampler = nn.Sequential(
            nn.Linear(2 * LATENT, 2 * SIZE), nn.Tanh(), nn.Linear(2 * SIZE, SIZE)
        )
        self.bottleneck.down_sampler = nn.Sequential(nn.Linear(SIZE, 2 * SIZE), nn.Tanh(), nn.Linear(2 * SIZE, LATENT))
        self.length_predictor = nn.Module()
        self.length_predictor.length_predictor = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 256))
        for name, parameter in self.named_parameters():
            if name != "timeW":  # norms too, so that each is told from the others
                nn.init.normal_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.3)
        self.eval()

    def read(self, source: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Return the encoder's states of sources (batch, source)."""
        rows = self.encoder.enc_token_embed(source) + self.encoder.enc_pos_embed.weight[: source.shape[1]]
        return self.encoder.encoder(rows, src_key_padding_mask=padding)

    def lengths(self, states: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Return the logits of the length's classes."""
        kept = (~padding)[..., None].to(states.dtype)
        return self.length_predictor.length_predictor((states * kept).sum(dim=1) / kept.sum(dim=1))

    def denoise(self, states, padding, state, previous, times) -> torch.Tensor:
        """Return the predicted embeddings of texts without padding."""
        angles = 2 * math.pi * times[:, None] * self.timeW
        time = self.bottleneck.time_proj(torch.cat([angles.sin(), angles.cos()], dim=-1))[:, None]
        rows = self.bottleneck.up_sampler(torch.cat([state, previous], dim=-1)) + time
        rows = self.decoder.norm(rows + self.decoder.pos_embedding.weight[: state.shape[1]])
        return self.bottleneck.down_sampler(self.decoder.trm(rows, states, memory_key_padding_mask=padding))

    def table(self) -> torch.Tensor:
        """Return the embeddings of all words."""
        return LATENT**0.5 * F.normalize(self.vae.embedding.weight, dim=-1)
