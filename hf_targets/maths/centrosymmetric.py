"""Matrices that are the same from either end, as two of half the size: decompositions take a quarter of the time.

A matrix A (rows, columns) is centrosymmetric if A[i, j] = A[rows-1-i, columns-1-j]. It maps symmetric vectors to
symmetric ones and antisymmetric vectors to antisymmetric ones. In orthonormal bases of the two, (e_i +- e_{n-1-i}) /
sqrt(2) and for odd n the middle e_i, it has two blocks and zeros elsewhere. So its singular values are those of the
blocks, and the blocks of its pseudo-inverse are their pseudo-inverses.
"""

import numpy as np
from jaxtyping import Float

Blocks = tuple[Float[np.ndarray, "_ _"], Float[np.ndarray, "_ _"]]
"""The symmetric block, half as large and rounded up, and the antisymmetric one, rounded down."""


def split(matrix: Float[np.ndarray, "rows columns"]) -> Blocks:
    """Return the blocks of a centrosymmetric matrix, of which the upper half is read.

    Source: Cantoni and Butler 1976, "Eigenvalues and eigenvectors of symmetric centrosymmetric matrices", theorem 1,
        for square matrices.
    """
    rows, columns = matrix.shape
    left = matrix[: (rows + 1) // 2, : (columns + 1) // 2]
    right = matrix[: (rows + 1) // 2, columns // 2 :][:, ::-1]
    symmetric = left + right
    _scale_middle(symmetric, rows, columns, np.sqrt(0.5))
    if rows % 2 and columns % 2:
        symmetric[-1, -1] = left[-1, -1]
    return symmetric, (left - right)[: rows // 2, : columns // 2]


def join(blocks: Blocks) -> Float[np.ndarray, "rows columns"]:
    """Return the matrix that `split` takes to these blocks."""
    (half_rows, half_columns), other = blocks[0].shape, blocks[1].shape
    rows, columns = half_rows + other[0], half_columns + other[1]
    symmetric = 0.5 * blocks[0]
    _scale_middle(symmetric, rows, columns, np.sqrt(2.0))
    if rows % 2 and columns % 2:
        symmetric[-1, -1] = blocks[0][-1, -1]
    left, right = symmetric, symmetric.copy()
    left[: other[0], : other[1]] += 0.5 * blocks[1]
    right[: other[0], : other[1]] -= 0.5 * blocks[1]
    matrix = np.empty((rows, columns), dtype=symmetric.dtype)
    matrix[:half_rows, :half_columns] = left
    matrix[:half_rows, columns // 2 :] = right[:, ::-1]
    matrix[half_rows:] = matrix[: rows // 2][::-1, ::-1]
    return matrix


def _scale_middle(symmetric: np.ndarray, rows: int, columns: int, factor: float) -> None:
    if rows % 2:
        symmetric[-1] *= factor
    if columns % 2:
        symmetric[:, -1] *= factor
