"""A Tensorized Transformer written out pair by pair, in the equations of the paper and the published program."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def position_by_hand(distance: int, width: int) -> Tensor:
    """Return the encoding (width,) of a distance."""
    angles = [distance / 10_000 ** (2 * k / width) for k in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def attention_by_hand(model, layer: int, hidden: Tensor) -> Tensor:
    """Return the output (time, d) of a layer's attention for one text (time, d), summed over pairs of positions."""
    body, config = model.model, model.config
    attention, size = body.layers[layer].attention, config.segment_length
    queries, keys, values = (hidden @ part.T for part in attention.qkv_proj.weight.chunk(3))
    matrix = attention.out_proj.weight.T.unflatten(0, (size, size))
    outputs = torch.zeros_like(hidden)
    for a in range(len(hidden)):
        first = a // size * size if config.paper_leaky else a - size + 1
        for b in range(max(first, 0), first + size):
            position = attention.position_proj.weight @ position_by_hand(first + size - 1 - b, config.hidden_size)
            for c in range(max(first, 0), first + size):
                entry = torch.zeros((), dtype=torch.float64)
                for core in attention.core:
                    entry = entry + (core * (queries[a] + body.content_bias) * keys[b] * values[c]).sum()
                    entry = entry + (core * (queries[a] + body.position_bias) * position * values[c]).sum()
                outputs[a] += entry / len(attention.core) * matrix[b - first, c - first]
    return outputs


def read_by_hand(model, ids: Tensor) -> Tensor:
    """Return the logits (time, vocab) of one text (time,), by a float64 model in evaluation mode."""
    hidden = model.model.embed_tokens.weight[ids] * math.sqrt(model.config.hidden_size)
    for index, layer in enumerate(model.model.layers):
        read = hidden + attention_by_hand(model, index, hidden)
        hidden = F.layer_norm(read, read.shape[-1:], layer.attention_norm.weight, layer.attention_norm.bias)
        inner = (hidden @ layer.up_proj.weight.T + layer.up_proj.bias).clamp(min=0)
        read = hidden + inner @ layer.down_proj.weight.T + layer.down_proj.bias
        hidden = F.layer_norm(read, read.shape[-1:], layer.feed_forward_norm.weight, layer.feed_forward_norm.bias)
    return hidden @ model.lm_head.weight.T + model.lm_head.bias
