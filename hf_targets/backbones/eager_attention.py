"""Attention that returns its weights, for models of ours that call the attention functions of Transformers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Return softmax(query key^T / sqrt(head_dim) + mask) value, (batch, time, heads, head_dim), and the weights.

    Args:
        module: The attention layer, as the interface of Transformers has it; its mode says whether weights are dropped.
        query, key, value: (batch, heads, time, head_dim).
        attention_mask: Added to the scores, (batch, 1, time, time).
        dropout: Of the weights, in training.
    """
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    weights = F.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2), weights
