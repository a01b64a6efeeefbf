"""What every engine that finds vectors offers, and what it checks: FAISS, files on disk, LanceDB, Qdrant, processes."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

Metric = Literal["inner_product", "distance"]
"""What is near: the highest inner products, or the lowest square distances."""


class VectorSearch(Protocol):
    """A search among numbered vectors, such as a `VectorIndex` or a `DiskIndex`.

    `generate(phrase_index=...)` takes any. Row r of the embeddings that it was built from has the number r.
    """

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        ...

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """Return what the vectors depend on, such as an encoder, each by a name and a value that changes with it."""
        ...

    @property
    def metric(self) -> Metric:
        """Return what is near, and what scores are."""
        ...

    def __len__(self) -> int: ...

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the `k` best scores and the numbers of their vectors, both (rows, k), best first.

        With fewer than `k` vectors all are returned. Where an engine finds fewer, the last numbers are -1.

        Args:
            queries: (rows, dim), of any float type. The results are on their device.
        Raises:
            ValueError: If `queries` is not a finite float matrix of this width, or `k` is below 1.
        """
        ...


def matrix(name: str, values: Tensor) -> Tensor:
    """Return a finite float matrix on the CPU, in float32."""
    if values.ndim != 2 or not values.is_floating_point():
        raise ValueError(f"{name} must be a float matrix, got {values.dtype} of shape {tuple(values.shape)}")
    rows = values.detach().to("cpu", torch.float32).contiguous()
    if not rows.isfinite().all():
        raise ValueError(f"{name} must be finite, got NaN or infinity; look for an overflow before it")
    return rows


def check_search(queries: Tensor, k: int, dim: int) -> Tensor:
    """Return queries as `matrix` does, if they have the width `dim` and `k` is 1 or more."""
    rows = matrix("queries", queries)
    if rows.shape[1] != dim or k < 1:
        raise ValueError(f"queries must have width {dim} and k be 1 or more, got {rows.shape[1]} and {k}")
    return rows


def filled_up(found: Sequence[Sequence[tuple[float, int]]], k: int, index: "VectorSearch") -> tuple[Tensor, Tensor]:
    """Return scores and numbers (rows, k) of what was found for each query, best first, in any number up to `k`."""
    scores = torch.full((len(found), k), torch.inf if index.metric == "distance" else -torch.inf)
    numbers = torch.full((len(found), k), -1)
    for row, pairs in enumerate(found):
        if pairs:
            scores[row, : len(pairs)] = torch.tensor([score for score, _ in pairs])
            numbers[row, : len(pairs)] = torch.tensor([number for _, number in pairs])
    return scores, numbers


def check_fingerprint(
    place: str | os.PathLike[str], wanted: Mapping[str, str] | None, built_with: Mapping[str, str]
) -> None:
    """Raise a ValueError if what a store was built with is not what its reader wants."""
    wanted = dict(wanted or {})
    if wanted != dict(built_with):
        differ = sorted(name for name in {*wanted, *built_with} if wanted.get(name) != built_with.get(name))
        raise ValueError(
            f"{place} was built with another {', '.join(differ)}; load it with what it was built with, or build it "
            "again"
        )
