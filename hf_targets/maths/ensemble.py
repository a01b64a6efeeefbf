"""The ensemble of next-token predictions and earlier future-token predictions, mixed before the output matrix.

Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
equation (13).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def check_ensemble_weight(weight: float) -> float:
    """Return `weight` if it is in [0, 1].

    Raises:
        ValueError: If it is not.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(
            f"ensemble_weight (lambda) must be in [0, 1], got {weight}; 0 means the next-token prediction only"
        )
    return weight


def mix_predictions(
    next_token: Float[Tensor, "batch time dim"],
    future: Sequence[Float[Tensor, "batch _ dim"]],
    exists: Sequence[Bool[Tensor, "batch _"]],
    weight: float,
) -> Float[Tensor, "batch time dim"]:
    """Return (1 - lambda) * next_token + lambda * mean of the future-token predictions of the same target.

    Args:
        next_token: The predictions of the ordinary head, one for the target of each position.
        future: Entry n - 1 holds the predictions of head n for the same targets, made n positions earlier. It covers
            the last targets; without a cache these are `time - n`, as no position precedes the first n targets by n.
        exists: True where a future-token prediction comes from the same sequence, not from padding or another document.
        weight: Lambda, in [0, 1].
    Raises:
        ValueError: If `weight` is outside [0, 1].
    Source: equation (13).
    Departs: the paper always divides by N - 1, and does not define the first positions. We average over the predictions
        that exist; a position without any keeps its next-token prediction.
    """
    check_ensemble_weight(weight)
    batch, time, _ = next_token.shape
    total = torch.zeros_like(next_token)
    count = torch.zeros(batch, time, 1, dtype=next_token.dtype, device=next_token.device)
    for predictions, present in zip(future, exists, strict=True):
        start, shown = time - predictions.shape[1], present[..., None]
        total[:, start:].add_(torch.where(shown, predictions, 0.0))
        count[:, start:].add_(shown)
    mixed = (1.0 - weight) * next_token + weight * total / count.clamp(min=1.0)
    return torch.where(count > 0, mixed, next_token)
