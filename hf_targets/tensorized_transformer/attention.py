"""Layers whose attention is a product of three factors, with a diagonal core and a matrix over pairs of positions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_targets.tensorized_transformer.configuration import TensorizedTransformerConfig

MOST_NUMBERS = 2**24
"""Numbers that attention without gradients holds at once; a longer text is read part by part."""
LONGEST_WAVE = 10_000


class TensorizedAttention(nn.Module):
    """Single-block attention: products of a query, a key and a value, summed by a core vector, without a softmax.

    For a position a and positions b, c of its window, with the core vector g (R,), the mean over the core tensors:

        T[a, b, c] = sum_r g_r (q_ar + u_r) k_br v_cr + sum_r g_r (q_ar + w_r) p_br v_cr
        output_a   = sum_{b, c} T[a, b, c] W[b, c]

    p_b is the key of a position, and u, w are biases that all layers share. W has S x S rows of width d. As the cores
    are diagonal and share q, k and v, several core tensors compute what one with their mean does.

    Causal: the window of a is its last S positions. b and c count from the oldest of them, so that W and p depend on
    the distances from a. Texts may have any length, and only products with positions of a's own text are summed.

    Departs: The published program cuts the text into segments of S, and each position of a segment reads all of it,
        later positions too: it computes a mask, and does not use it. Such a model reads the tokens that it predicts, so
        ours is causal. `config.paper_leaky` computes what is published, in which no position knows its place: equal
        words of a segment have equal outputs. The last position of a segment reads the same in both.
    Source: Ma et al., "A Tensorized Transformer for Language Modeling"; szhangtju/The-compression-of-Transformer.
    """

    def __init__(self, config: TensorizedTransformerConfig, index: int) -> None:
        super().__init__()
        self.config, self.size, self.index = config, config.segment_length, index
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.head_dim, bias=False)
        self.position_proj = nn.Linear(config.hidden_size, config.head_dim, bias=False)
        self.core = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))
        self.out_proj = nn.Linear(self.size**2, config.hidden_size, bias=False)

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        content_bias: Tensor,
        position_bias: Tensor,
        reach: Tensor,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """Return the output of attention (batch, time, d).

        Args:
            hidden: (batch, time, d).
            positions: (S, d), the encodings of the positions of a window, the oldest first.
            content_bias, position_bias: (R,), u and w.
            reach: Whether a window's positions are read, (1 or batch, time, S); with `paper_leaky` whether the
                positions of the text are, (1 or batch, time).
            past_key_values: Keys and values of earlier positions, to which those of these are added.
        """
        query, key, value = self.qkv_proj(hidden).chunk(3, dim=-1)
        core, position_keys = self.core.mean(dim=0), self.position_proj(positions)
        queries = core * (query + content_bias), core * (query + position_bias)
        if self.config.paper_leaky:
            return self.out_proj(segment_products(*queries, key, value, position_keys, reach))
        if past_key_values is not None:
            key, value = (part[:, 0] for part in past_key_values.update(key[:, None], value[:, None], self.index))
        return self._read_windows(
            queries, windows(key, self.size, query), windows(value, self.size, query), position_keys, reach
        )

    def _read_windows(
        self, queries: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, position_keys: Tensor, reach: Tensor
    ) -> Tensor:
        """Return the output of attention, computed part by part where no gradient needs all of it."""
        batch, time, rank = queries[0].shape
        step = max(1, MOST_NUMBERS // (batch * self.size * (self.size + 2 * rank)))
        if torch.is_grad_enabled() or step >= time:
            return self.out_proj(window_products(*queries, keys, values, position_keys, reach))
        parts = (part.split(step, dim=1) for part in (*queries, keys, values, reach))
        return torch.cat(
            [
                self.out_proj(window_products(content, position, key, value, position_keys, reached))
                for content, position, key, value, reached in zip(*parts, strict=True)
            ],
            dim=1,
        )


def windows(states: Tensor, size: int, queries: Tensor) -> Tensor:
    """Return the window of each query, the oldest position first: a view (batch, time, R, size), 0 before the text.

    Args:
        states: (batch, earlier + time, R), keys or values of earlier positions and of those of the queries.
        queries: (batch, time, R).
    """
    length = size - 1 + queries.shape[1]
    states = states[:, -length:]
    return F.pad(states, (0, 0, length - states.shape[1], 0)).unfold(1, size, 1)


def window_products(
    content_query: Tensor, position_query: Tensor, keys: Tensor, values: Tensor, position_keys: Tensor, reach: Tensor
) -> Tensor:
    """Return T of each position and its window, (batch, time, S * S).

    Args:
        content_query, position_query: (batch, time, R), g (q + u) and g (q + w).
        keys, values: (batch, time, R, S), by window.
        position_keys: (S, R).
        reach: (1 or batch, time, S).
    """
    out = ~reach[:, :, None]
    left = content_query[..., None] * keys + position_query[..., None] * position_keys.mT
    left, values = left.masked_fill(out, 0.0), values.masked_fill(out, 0.0)
    return (left.mT @ values).flatten(2)


def segment_products(
    content_query: Tensor, position_query: Tensor, key: Tensor, value: Tensor, position_keys: Tensor, reach: Tensor
) -> Tensor:
    """Return T of each position and its segment, (batch, time, S * S), as published: later positions are read too.

    Args:
        content_query, position_query, key, value: (batch, time, R).
        position_keys: (S, R).
        reach: (1 or batch, time).
    """
    size = len(position_keys)
    parts = [part.unflatten(1, (-1, size)) for part in (content_query, position_query, key, value)]
    content_query, position_query, key, value = parts
    out = ~reach.unflatten(1, (-1, size))[..., None]  # (1 or batch, segments, S, 1)
    left = content_query[..., None, :] * key[:, :, None] + position_query[..., None, :] * position_keys
    left = left.masked_fill(out[:, :, None], 0.0).flatten(2, 3)  # (batch, segments, S * S, R)
    products = left @ value.masked_fill(out, 0.0).mT
    return products.unflatten(2, (size, size)).flatten(3).flatten(1, 2)


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
    """Attention and a feed-forward layer, each added to what it reads and then normalised."""

    def __init__(self, config: TensorizedTransformerConfig, index: int) -> None:
        super().__init__()
        self.attention = TensorizedAttention(config, index)
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, *read: Any, past_key_values: Cache | None = None) -> Tensor:
        """Return the hidden states (batch, time, d) after the layer; the arguments are those of its attention."""
        attended = self.attention(hidden, *read, past_key_values)
        hidden = self.attention_norm(hidden + self.dropout(attended))
        inner = self.dropout(self.up_proj(hidden).relu())
        return self.feed_forward_norm(hidden + self.dropout(self.down_proj(inner)))
