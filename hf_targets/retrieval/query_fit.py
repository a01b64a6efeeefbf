"""A change of vectors and queries that keeps their inner products, after which lists and codes serve the queries."""

import os
from typing import Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_targets.retrieval.vector_search import matrix

_LEAST = 1e-3
"""The least second moment of a direction, as a share of the largest: other queries may vary where a sample did not."""


class QueryFit:
    """Maps vectors v to (A v, sqrt(m - |A v|^2)) and queries q to (A^-1 q, 0): q . v stays as it is.

    An index groups and codes vectors by their distances. An error e of a code changes a score by q . e, on average over
    queries e^T C e with C = E[q q^T]: with A = C^(1/2) it is |A e|^2, the distance that codes keep small. The last
    coordinate gives all vectors the length sqrt(m), so that vectors of a high product are near to each other, too.

    Args:
        root: (dim, dim), A.
        square: m; at vectors that are longer the last coordinate is 0.
    Source: Bachrach et al. 2014, "Speeding Up the Xbox Recommender System Using a Euclidean Transformation for
        Inner-Product Spaces", for the last coordinate.
    """

    def __init__(self, root: Tensor, square: float) -> None:
        self.root, self.square = root, square
        self._inverse = torch.linalg.inv(root)

    @classmethod
    def of(cls, queries: Tensor, sample: Tensor) -> Self:
        """Return what suits a sample of queries (queries, dim) and of vectors (vectors, dim).

        Raises:
            ValueError: If the queries are not a finite float matrix of the vectors' width that is not 0.
        """
        rows = matrix("queries", queries).double()
        if not rows.any() or rows.shape[1:] != sample.shape[1:]:
            raise ValueError(f"queries must have the vectors' width {sample.shape[1]}, and not be 0, got {rows.shape}")
        values, directions = torch.linalg.eigh(rows.T @ rows / len(rows))
        roots = values.clamp(min=_LEAST * float(values[-1])).sqrt()
        root = ((directions * roots) @ directions.T).float()
        squares = (sample.float() @ root).square().sum(dim=1).sort().values
        return cls(root, float(squares[int(0.999 * (len(squares) - 1))]))

    def of_vectors(self, rows: Tensor) -> Tensor:
        """Return what is put into the index for vectors (vectors, dim): (vectors, dim + 1)."""
        fitted = rows @ self.root
        rest = (self.square - fitted.square().sum(dim=1, keepdim=True)).clamp(min=0).sqrt()
        return torch.cat([fitted, rest], dim=1)

    def of_queries(self, rows: Tensor) -> Tensor:
        """Return what the index is asked for queries (queries, dim): (queries, dim + 1)."""
        return torch.cat([rows @ self._inverse.to(rows.device), rows.new_zeros(len(rows), 1)], dim=1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of safetensors."""
        save_file({"root": self.root, "square": torch.tensor(self.square, dtype=torch.float64)}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return what `save` wrote."""
        read = load_file(path)
        return cls(read["root"], float(read["square"]))
