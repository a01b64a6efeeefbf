"""Word difference representations (WDR): n-level differences of token embeddings, and the way back to embeddings.

Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
equations (7) to (10) and appendix A.1. The reversed direction is the alternative below equation (8) of its earlier
version, "N-gram Prediction and Word Difference Representations for Language Modeling".
"""

from math import comb

import torch
from jaxtyping import Float
from torch import Tensor


def word_differences(
    embeddings: Float[Tensor, "batch time dim"], order: int, *, reverse: bool = False
) -> Float[Tensor, "batch time dim"]:
    """Return the `order`-level word differences of a sequence of embeddings.

    Level 1 is x[t+1] - x[t], and x[T] at the last step; level n is level 1 of level n - 1. While t <= T - n this is
    the n-th forward difference, sum_i C(n, i) (-1)^i x[t+n-i]. Order 0 returns the embeddings.

    Args:
        reverse: Subtract in the opposite direction: level 1 is x[t] - x[t+1], and level n is that of level n - 1. While
            t <= T - n this is (-1)^n times the n-th forward difference: even levels stay as they are. The last n steps
            differ in more than the sign.
    Raises:
        ValueError: If `order` is negative.
    Source: equations (7) and (8); reversed, the alternative below equation (8).
    """
    if order < 0:
        raise ValueError(f"order must be 0 or more, got {order}")
    differences = embeddings
    for _ in range(order):
        steps = torch.diff(differences, dim=1)
        differences = torch.cat([-steps if reverse else steps, differences[:, -1:]], dim=1)
    return differences


def conjugate_coefficients(order: int) -> list[int]:
    """Return the weights of x[t], ..., x[t+n-1] in the conjugate of level n; their absolute values sum to 2^n - 1.

    The weight of x[t+n-i] is -C(n, i) (-1)^i for i = n, ..., 1.

    >>> [conjugate_coefficients(order) for order in (1, 2, 3)]
    [[1], [-1, 2], [1, -3, 3]]

    Raises:
        ValueError: If `order` is below 1.
    Source: equation (10).
    """
    if order < 1:
        raise ValueError(f"order must be 1 or more, got {order}")
    return [-comb(order, i) * (-1) ** i for i in range(order, 0, -1)]


def reconstruction_conjugates(
    embeddings: Float[Tensor, "batch time dim"], order: int
) -> Float[Tensor, "batch time-{order}+1 dim"]:
    """Return, for every window of `order` embeddings, the term that turns a word difference into the next embedding.

    difference[t] + conjugate[t] = x[t+n], which `reconstructed_embeddings` computes. Entry t is computed only from
    x[t], ..., x[t+n-1]. It is not computed as x[t+n] - difference[t], as rounding would then leave a trace of x[t+n],
    the token to be predicted.

    Raises:
        ValueError: If `order` is below 1 or exceeds the number of steps.
    Source: equation (10).
    """
    num_windows = embeddings.shape[1] - order + 1
    if num_windows < 1:
        raise ValueError(f"order must be in [1, {embeddings.shape[1]}] for {embeddings.shape[1]} steps, got {order}")
    first, *others = conjugate_coefficients(order)
    total = first * embeddings[:, :num_windows]
    for start, coefficient in enumerate(others, start=1):
        total = total + coefficient * embeddings[:, start : start + num_windows]
    return total


def reconstructed_embeddings(
    differences: Float[Tensor, "... dim"],
    conjugates: Float[Tensor, "... dim"],
    order: int,
    *,
    reverse: bool = False,
) -> Float[Tensor, "... dim"]:
    """Return x[t+n] of `order`-level differences at t and their conjugates: conjugate + difference.

    Args:
        reverse: The differences are reversed ones, (-1)^n times the others. The conjugates are the same, of the same n
            known embeddings, and an odd level is subtracted from its conjugate in place of being added.
    Raises:
        ValueError: If `order` is below 1.
    Source: equation (10), and the alternative below equation (8), solved for x[t+n].
    """
    if order < 1:
        raise ValueError(f"order must be 1 or more, got {order}")
    return conjugates - differences if reverse and order % 2 else differences + conjugates
