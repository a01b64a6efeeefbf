"""What is around the Transformer layers: the time embedding, the way from embeddings and back, a text's length."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from hf_targets.gaussian_diffusion.configuration import FOURIER_PAIRS, DifformerConfig

LEAST_LENGTH = 2
"""Tokens of the shortest text that is written: a word and the end."""
_LONGEST_PERIOD = 10_000.0
_FOURIER_SCALE, _FOURIER_WIDTH = 16.0, 512


class SinusoidalTime(nn.Sequential):
    """Cosines and sines of the time with wave lengths up to 2 pi 10,000, and a ReLU network.

    Source: the published program of Difformer, whose parameter names these are.
    """

    def __init__(self, config: DifformerConfig) -> None:
        size = config.hidden_size
        super().__init__(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))

    def forward(self, times: Tensor) -> Tensor:
        """Return (batch, 1, hidden) for times (batch,)."""
        first = cast(nn.Linear, self[0])
        half = first.in_features // 2
        steps = torch.arange(half, dtype=torch.float32, device=times.device) / half
        angles = times.float()[:, None] * torch.exp(-math.log(_LONGEST_PERIOD) * steps)
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        return super().forward(waves.to(first.weight.dtype))[:, None]


class FourierTime(nn.Sequential):
    """Sines and cosines of the time at many frequencies, and a SiLU network.

    Departs: the published program draws frequencies from N(0, 16^2) and keeps them as a tensor; ours are 128 quantiles
    of it, or in the configuration, so that no rounding of a checkpoint changes them.

    Source: the published program of DINOISER.
    """

    def __init__(self, config: DifformerConfig) -> None:
        layers = nn.Linear(2 * FOURIER_PAIRS, _FOURIER_WIDTH), nn.SiLU()
        super().__init__(*layers, nn.Linear(_FOURIER_WIDTH, config.hidden_size))
        self._given = config.time_frequencies

    def forward(self, times: Tensor) -> Tensor:
        """Return (batch, 1, hidden) for times (batch,)."""
        angles = 2 * math.pi * times.float()[:, None] * self._frequencies(times.device)
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
        return super().forward(waves.to(cast(nn.Linear, self[0]).weight.dtype))[:, None]

    def _frequencies(self, device: torch.device) -> Tensor:
        if self._given is not None:
            return torch.tensor(self._given, dtype=torch.float32, device=device)
        ranks = (torch.arange(FOURIER_PAIRS, dtype=torch.float32, device=device) + 0.5) / FOURIER_PAIRS
        return _FOURIER_SCALE * torch.special.ndtri(ranks)


class LinearInput(nn.Module):
    """From a state and the decoder's last prediction to hidden states: one matrix for both, then a ReLU network.

    Source: the published program of Difformer.
    """

    def __init__(self, config: DifformerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.project_in_dim = nn.Linear(cast(int, config.latent_size), size, bias=False)
        layers = nn.Linear(2 * size, size), nn.ReLU(), nn.Linear(size, size), nn.Dropout(cast(float, config.dropout))
        self.self_cond_proj = nn.Sequential(*layers)

    def forward(self, state: Tensor, previous: Tensor) -> Tensor:
        """Return (batch, positions, hidden) of states and predictions (batch, positions, latent)."""
        return self.self_cond_proj(torch.cat([self.project_in_dim(state), self.project_in_dim(previous)], dim=-1))


class TanhInput(nn.Sequential):
    """From a state and the decoder's last prediction to hidden states: a tanh network that reads both.

    Source: the published program of DINOISER.
    """

    def __init__(self, config: DifformerConfig) -> None:
        latent, size = cast(int, config.latent_size), config.hidden_size
        super().__init__(nn.Linear(2 * latent, 2 * size), nn.Tanh(), nn.Linear(2 * size, size))

    def forward(self, state: Tensor, previous: Tensor) -> Tensor:
        """Return (batch, positions, hidden) of states and predictions (batch, positions, latent)."""
        return super().forward(torch.cat([state, previous], dim=-1))


def time_layer(config: DifformerConfig) -> nn.Module:
    """Return the time embedding that a configuration names."""
    return SinusoidalTime(config) if config.time_embedding == "sinusoidal" else FourierTime(config)


def input_layer(config: DifformerConfig) -> nn.Module:
    """Return what a decoder reads states and predictions with."""
    return LinearInput(config) if config.projection == "linear" else TanhInput(config)


def output_layer(config: DifformerConfig) -> nn.Module:
    """Return what makes predicted embeddings of hidden states."""
    latent, size = cast(int, config.latent_size), config.hidden_size
    if config.projection == "linear":
        return nn.Linear(size, latent, bias=False)
    return nn.Sequential(nn.Linear(size, 2 * size), nn.Tanh(), nn.Linear(2 * size, latent))


class LengthPredictor(nn.Module):
    """A class for each difference between the lengths of a text and its source, from the mean of the encoder's states.

    Class c stands for the difference c - classes / 2. Longer and shorter texts are in the outermost classes.

    Source: Gu and Kong, as NATransformerModel of fairseq has it with `--pred-length-offset`; `length_projection="tanh"`
        is that of DINOISER's published program, whose loss does not train the encoder.
    """

    def __init__(self, config: DifformerConfig) -> None:
        super().__init__()
        self.num_classes, self.longest = config.num_length_classes, config.max_position_embeddings
        size, self.is_alone = config.hidden_size, config.length_projection == "tanh"
        if config.length_projection == "linear":
            self.embed_length: nn.Module = nn.Linear(size, config.num_length_classes, bias=False)
        else:
            self.embed_length = nn.Sequential(
                nn.Linear(size, size), nn.Tanh(), nn.Linear(size, config.num_length_classes)
            )

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return logits (batch, classes) from the encoder's hidden states (batch, source, hidden).

        Args:
            mask: (batch, source), 0 at padding.
        """
        kept, hidden = mask[..., None].to(hidden.dtype), hidden.detach() if self.is_alone else hidden
        return self.embed_length((hidden * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1))

    def classes(self, is_target: Tensor, mask: Tensor) -> Tensor:
        """Return the class (batch,) of texts, the outermost for want of another.

        Args:
            is_target: (batch, time), bool, false after the end of a text.
            mask: (batch, source), 0 at padding.
        """
        classes = is_target.sum(dim=1) - mask.sum(dim=1) + self.num_classes // 2
        return classes.clamp(0, self.num_classes - 1)

    def candidates(self, logits: Tensor, mask: Tensor, num_lengths: int) -> Tensor:
        """Return the most probable length and those around it, (batch, num_lengths), each within what can be written.

        Of four lengths two are shorter than the most probable one and one is longer, as in Difformer's program.
        Departs: DINOISER's program takes the most probable lengths, not the neighbours of the best one.
        """
        best = (logits.argmax(dim=1) - self.num_classes // 2 + mask.sum(dim=1)).clamp(LEAST_LENGTH, self.longest)
        around = torch.arange(num_lengths, device=logits.device) - num_lengths // 2
        return (best[:, None] + around).clamp(LEAST_LENGTH, self.longest)
