"""Ranks inside the rows of a batch."""

from jaxtyping import Float, Int
from torch import Tensor


def rank(keys: Float[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the rank of each key in its row, from 0 for the smallest; of equal keys the left one ranks first."""
    return keys.argsort(dim=1, stable=True).argsort(dim=1)
