"""The layers of a CrammedBERT: scaled sines for positions, attention and gated feed-forward layers without biases."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_targets.backbones.recorded_states import eager_attention
from hf_targets.crammed_bert.configuration import CrammedBertConfig

_LONGEST_PERIOD = 10_000.0


class ScaledSines(nn.Module):
    """Positions as sines and cosines in turn, times a learnt scale, which begins at 1 / sqrt(d).

    They are computed in each pass, in float32 (float64 for a float64 model), and are no buffer: no table ends, and no
    cast or move to another device changes them.
    """

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__()
        self.size = config.hidden_size
        self.scale = nn.Parameter(torch.tensor([self.size**-0.5]))

    def forward(self, positions: Tensor) -> Tensor:
        """Return the embeddings (batch, time, d) of positions (batch, time)."""
        wide = torch.promote_types(self.scale.dtype, torch.float32)
        half = torch.arange(0, self.size, 2, dtype=wide, device=positions.device)
        angles = positions.to(wide)[..., None] * _LONGEST_PERIOD ** (-half / self.size)
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return (self.scale * table).to(self.scale.dtype)


class CrammedBertAttention(nn.Module):
    """Self-attention without biases. Rows of the first matrix are query, key and value of each head in turn."""

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.is_causal = False  # the attention functions of Transformers read it, and assume True if it is missing
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the attended states (batch, time, d), and the weights (batch, heads, time, time) of eager attention.

        Args:
            hidden: (batch, time, d).
            attention_mask: The output of `create_bidirectional_mask` of Transformers for the attention in use.
        """
        batch, time, size = hidden.shape
        heads = self.query_key_value(hidden).view(batch, time, -1, 3 * self.head_size).transpose(1, 2)
        name = cast(str, self.config._attn_implementation)
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention)
        attended, weights = attend(
            self,
            *heads.split(self.head_size, dim=-1),
            attention_mask,
            dropout=self.config.attention_probs_dropout_prob if self.training else 0.0,
            scaling=self.head_size**-0.5,
            is_causal=False,
        )
        return self.dense(attended.reshape(batch, time, size)), weights


class CrammedBertLayer(GradientCheckpointingLayer):
    """x + attention(norm(x)), then the same with a gated feed-forward layer, dense_out(GELU(gate) * value)."""

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__()
        self.config = config
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = CrammedBertAttention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dense_in = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.dense_out = nn.Linear(config.intermediate_size // 2, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return hidden states (batch, time, d)."""
        hidden = hidden + self._dropped(self.attention(self.norm1(hidden), attention_mask)[0])
        value, gate = self.dense_in(self.norm2(hidden)).chunk(2, dim=-1)
        return hidden + self._dropped(self.dense_out(F.gelu(gate) * value))

    def _dropped(self, states: Tensor) -> Tensor:
        return F.dropout(states, self.config.hidden_dropout_prob, self.training)
