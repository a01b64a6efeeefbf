"""The blocks of a diffusion Transformer (DiT): rotary attention and an MLP, both modulated by the time."""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward

from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.masked_diffusion.configuration import MdlmConfig

_TIME_FEATURES = 256
_LONGEST_PERIOD = 10_000.0


def layer_norm(config: MdlmConfig) -> nn.LayerNorm:
    """Return a normalisation with a weight and without a bias."""
    return nn.LayerNorm(config.hidden_size, eps=1e-5, bias=False)


class TimeEmbedding(nn.Module):
    """An embedding of sigma, the total noise: 256 features, half cosines and half sines, then a small network.

    Source: kuleshov-group/mdlm, which also puts the cosines first.
    """

    def __init__(self, config: MdlmConfig) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(_TIME_FEATURES, config.cond_dim), nn.SiLU(), nn.Linear(config.cond_dim, config.cond_dim)
        )

    def forward(self, sigma: Tensor) -> Tensor:
        """Return the embedding (batch, 1 or length, cond_dim) of sigma (batch, 1 or length)."""
        half, dtype = _TIME_FEATURES // 2, cast(nn.Linear, self.mlp[0]).weight.dtype
        wide = torch.promote_types(dtype, torch.float32)
        positions = torch.arange(half, dtype=wide, device=sigma.device)
        angles = sigma.to(wide)[..., None] * torch.exp(-math.log(_LONGEST_PERIOD) * positions / half)
        features = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return F.silu(self.mlp(features.to(dtype)))


def rotary_frequencies(
    head_dim: int, *, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Tensor:
    """Return 10,000^(-2i / head_dim), (head_dim / 2,), the rotation angles per position; bit-equal to the published."""
    return 1.0 / _LONGEST_PERIOD ** (torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim)


def rotary_table(length: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines, each (length, head_dim), that rotate queries and keys at positions 0 to length - 1.

    They are computed again in float32 at least, and are no buffer, so that no checkpoint or cast can change them.
    """
    wide = torch.promote_types(dtype, torch.float32)
    frequencies = rotary_frequencies(head_dim, dtype=wide, device=device)
    angles = torch.outer(torch.arange(length, dtype=wide, device=device), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def _rotate(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of states (batch, heads, length, head_dim)."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines.to(states.dtype) + torch.cat([-second, first], dim=-1) * sines.to(states.dtype)


class DitBlock(GradientCheckpointingLayer):
    """One block: x + gate * attention(modulate(norm(x))), then the same with the MLP.

    modulate(x) = x (1 + scale) + shift; gates, scales and shifts are a linear function of the time embedding.

    Source: Peebles and Xie 2023, adaLN; the parameter names are those of kuleshov-group/mdlm.
    """

    def __init__(self, config: MdlmConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.is_causal = False  # the attention functions of Transformers read it, and assume True if it is missing
        self.norm1 = layer_norm(config)
        self.attn_qkv = nn.Linear(size, 3 * size, bias=False)
        self.attn_out = nn.Linear(size, size, bias=False)
        self.norm2 = layer_norm(config)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(approximate="tanh"), nn.Linear(4 * size, size))
        self.adaLN_modulation = ZeroInitLinear(config.cond_dim, 6 * size)

    def modulation(self, condition: Tensor) -> tuple[Tensor, ...]:
        """Return shift, scale and gate of the attention, then of the MLP, each (batch or 1, 1 or length, d)."""
        return self.adaLN_modulation(condition).chunk(6, dim=-1)

    def forward(
        self,
        hidden: Tensor,
        condition: Tensor,
        rotary: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        attentions: list[Tensor] | None = None,
    ) -> Tensor:
        """Return hidden states (batch, length, d).

        Args:
            condition: (batch or 1, 1 or length, cond_dim), the time embedding.
            rotary: The cosines and sines of `rotary_table`.
            attention_mask: The output of `create_bidirectional_mask` of Transformers for the attention in use.
            attentions: A list to which eager attention appends its weights, (batch, heads, length, length).
        """
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(condition)
        attended = self._attend(modulate(self.norm1(hidden), shift, scale), rotary, attention_mask, attentions)
        hidden = hidden + gate * self._dropped(attended)
        return hidden + mlp_gate * self._dropped(self.mlp(modulate(self.norm2(hidden), mlp_shift, mlp_scale)))

    def _dropped(self, states: Tensor) -> Tensor:
        return F.dropout(states, self.config.dropout, self.training)

    def _attend(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        attentions: list[Tensor] | None,
    ) -> Tensor:
        batch, length, size = hidden.shape
        heads = self.attn_qkv(hidden).view(batch, length, 3, self.config.num_attention_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        name = cast(str, self.config._attn_implementation)
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
        attended, weights = attend(
            self,
            _rotate(query, *rotary),
            _rotate(key, *rotary),
            value,
            attention_mask,
            dropout=0.0,
            scaling=(size // self.config.num_attention_heads) ** -0.5,
            is_causal=False,
        )
        if attentions is not None and weights is not None:
            attentions.append(weights)
        return self.attn_out(attended.reshape(batch, length, size))


class OutputLayer(nn.Module):
    """The last normalisation, with modulation, and the output matrix.

    `forward` does not apply the matrix: with a curve, control points first become states of tokens.
    """

    def __init__(self, config: MdlmConfig) -> None:
        super().__init__()
        self.norm_final = layer_norm(config)
        self.linear = ZeroInitLinear(config.hidden_size, config.vocab_size)
        self.adaLN_modulation = ZeroInitLinear(config.cond_dim, 2 * config.hidden_size)

    def modulation(self, condition: Tensor) -> tuple[Tensor, ...]:
        """Return shift and scale, each (batch or 1, 1 or length, d)."""
        return self.adaLN_modulation(condition).chunk(2, dim=-1)

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        """Return the input of `linear`."""
        return modulate(self.norm_final(hidden), *self.modulation(condition))


def modulate(hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return hidden * (1 + scale) + shift."""
    return hidden * (1 + scale) + shift
