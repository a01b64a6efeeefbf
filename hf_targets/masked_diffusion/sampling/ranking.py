"""Ranks inside the rows of a batch."""

from jaxtyping import Float, Int
from torch import Tensor


def rank(keys: Float[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return how many of its row's keys come before each key, smallest first; of equal keys the left one is before."""
    return keys.argsort(dim=1, stable=True).argsort(dim=1)
