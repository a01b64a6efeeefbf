"""The ensemble of next-token and earlier future-token predictions, before the output matrix.

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
            f"ensemble_weight (lambda) must be in [0, 1], got {weight}; 0 is the next-token prediction alone"
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
        next_token: The ordinary predictions, one for the target of each position.
        future: Head n's predictions of those same targets, made n positions earlier; entry n - 1 covers the last
            `time - n` targets, as there is none for the first n.
        exists: True where such a prediction is one of the same sequence, not of padding or of another document.
        weight: Lambda, in [0, 1].
    Raises:
        ValueError: If `weight` is outside [0, 1].
    Source: equation (13).
    Departs: the paper divides by N - 1 everywhere and does not say what the first positions do; we average over the
        predictions that exist and leave a position with none as it is.
    """
    check_ensemble_weight(weight)
    batch, time, _ = next_token.shape
    total = torch.zeros_like(next_token)
    count = torch.zeros(batch, time, 1, dtype=next_token.dtype, device=next_token.device)
    for predictions, present in zip(future, exists, strict=True):
        start = time - predictions.shape[1]
        total[:, start:] += predictions.masked_fill(~present[..., None], 0.0)
        count[:, start:] += present[..., None].to(count.dtype)
    mixed = (1.0 - weight) * next_token + weight * total / count.clamp(min=1.0)
    return torch.where(count > 0, mixed, next_token)
