"""A layer of a Tensorized Transformer, and the encodings of positions that its attention reads."""

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_targets.tensorized_transformer.attention import TensorizedAttention
from hf_targets.tensorized_transformer.configuration import TensorizedTransformerConfig

LONGEST_WAVE = 10_000


def position_encodings(size: int, width: int, like: Tensor) -> Tensor:
    """Return sines and cosines of the distances size - 1, ..., 0 from the last position, (size, width).

    Args:
        width: Even.
        like: Has the device and the type.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    distances = torch.arange(size - 1, -1, -1, device=like.device, dtype=dtype)
    exponents = torch.arange(0, width, 2, device=like.device, dtype=dtype) / width
    angles = distances[:, None] / LONGEST_WAVE**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)


class TensorizedLayer(GradientCheckpointingLayer):
    """Attention and a feed-forward layer, each added to what it reads and then normalised.

    Args:
        config: The sizes, and dropout.
        index: Of the layer, in the cache.
    """

    def __init__(self, config: TensorizedTransformerConfig, index: int) -> None:
        super().__init__()
        self.attention = TensorizedAttention(config, index)
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        content_bias: Tensor,
        position_bias: Tensor,
        reach: Tensor,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """Return the hidden states (batch, time, d) after the layer; the arguments are those of its attention."""
        read = self.attention(hidden, positions, content_bias, position_bias, reach, past_key_values)
        hidden = self.attention_norm(hidden + self.dropout(read))
        inner = self.dropout(self.up_proj(hidden).relu())
        return self.feed_forward_norm(hidden + self.dropout(self.down_proj(inner)))
