"""B-spline curves through the tokens of a sentence: basis matrices B, and their inverses, which give control points."""

import warnings
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from scipy.interpolate import BSpline
from scipy.linalg import qr, solve_triangular
from torch import Tensor

TOLERANCE = 1e-6
"""Largest allowed entry of |B^+ B - I| for an inverse B^+. The pseudo-inverse drops singular values below this share of
the largest, which keeps it usable in float32."""

RankDeficient = Literal["pseudo_inverse"]
Factors = tuple[np.ndarray, np.ndarray]

Blocks = tuple[Float[np.ndarray, "_ _"], Float[np.ndarray, "_ _"]]
"""The blocks of a matrix that is the same from either end: the symmetric one, half as large and rounded up, and the
antisymmetric one, rounded down.

A matrix A (rows, columns) is centrosymmetric if A[i, j] = A[rows-1-i, columns-1-j]. It maps symmetric vectors to
symmetric ones and antisymmetric vectors to antisymmetric ones. In orthonormal bases of the two, (e_i +- e_{n-1-i}) /
sqrt(2) and for odd n the middle e_i, it has two blocks and zeros elsewhere. So its singular values are those of the
blocks, the blocks of its pseudo-inverse are their pseudo-inverses, and decompositions take a quarter of the time.
"""


def basis_matrix(
    num_points: int, num_control_points: int, degree: int, margin: float = 0.01
) -> Float[Tensor, "control_points points"]:
    """Return B, whose column l holds the weights of the control points at point l: E = P B, with vectors as columns.

    B[n, l] = b_n(gamma_l) for the B-spline basis of the given degree. Columns sum to 1 and no weight is negative, so a
    point lies in the convex hull of degree + 1 control points.

    Args:
        num_points: L, at least 1. The points are evenly spaced in [margin, 1 - margin]; a single point is at 0.5.
        num_control_points: N, more than `degree`.
        degree: Eta, 0 or more: each point depends on eta + 1 control points.
        margin: Share of the curve before the first and after the last point, in [0, 0.5).
    Returns: Float64.
    Raises:
        ValueError: If an argument is outside its range.
    Source: Heo and Choi, "Sentence Curve Language Models", sections 4.1 and 5.2. The paper does not specify its knots;
        ours are uniform on [0, 1] and clamped, so that the curve begins at its first control point and ends at its
        last.
    """
    return torch.from_numpy(_design(num_points, num_control_points, degree, margin)).T


def inverse_matrix(
    num_points: int,
    num_control_points: int,
    degree: int,
    margin: float = 0.01,
    *,
    rank_deficient: RankDeficient | None = None,
    max_norm: float | None = 50.0,
) -> Float[Tensor, "points control_points"]:
    """Return B^+ = (B^T B)^-1 B^T, which maps points to control points: P = E B^+ has the least norm of all P B = E.

    It is computed as R^-1 Q^T from B = Q R, which keeps digits that B^T B would lose, in two blocks of half the size
    (`split`). B has rank L only if N >= L, no control point is without a token, and (to working precision) the degree
    is small compared with N / L. Where it is not, `rank_deficient="pseudo_inverse"` makes P B the projection of
    E onto all curves.

    Args:
        num_points, num_control_points, degree, margin: As in `basis_matrix`.
        rank_deficient: What to do if B does not have rank L. None raises an error; `"pseudo_inverse"` takes the Moore-
            Penrose inverse without singular values below `TOLERANCE` times the largest, to be of use in float32.
        max_norm: Warn if ||B^+||_2, the factor by which errors of E grow in P, is larger; None: never.
    Returns: Float64.
    Raises:
        ValueError: If an argument is outside its range, or B does not have rank L and `rank_deficient` is None.
    Source: Heo and Choi, "Sentence Curve Language Models", section 4.1.
    """
    if rank_deficient not in (None, "pseudo_inverse"):
        raise ValueError(f'rank_deficient must be None or "pseudo_inverse", got {rank_deficient!r}')
    design = _design(num_points, num_control_points, degree, margin)
    blocks = split(design) if degree else (design, design[:0, :0])
    factors = [_qr(block) for block in blocks]
    inverses = _left_inverses(blocks, factors, exact=rank_deficient is None)
    if inverses is None and rank_deficient is None:
        raise ValueError(_deficient(num_points, num_control_points, degree))
    if inverses is None:
        inverses = _pseudo_inverses(factors)
    if max_norm is not None and _frobenius(inverses) > max_norm:  # the Frobenius norm bounds the spectral norm
        norm = max(float(np.linalg.norm(block, 2)) for block in inverses if block.size)
        if norm > max_norm:
            warnings.warn(
                f"control points of {num_points} tokens on a curve of degree {degree} may be {norm:.3g} times as large "
                f"as the tokens (||B^+||): float32 restores tokens only to about {norm * 2**-24:.0e}; lower degree or "
                "degree_ratio, or raise num_control_points_ratio",
                stacklevel=2,
            )
    return torch.from_numpy(join(inverses) if degree else inverses[0]).T


def _design(num_points: int, num_control_points: int, degree: int, margin: float) -> np.ndarray:
    """Return B^T, (points, control_points), with degree + 1 weights in each row.

    From degree 1 on it is exactly the same from either end. Of degree 0 it is not, as a point on a knot belongs to the
    control point after it.
    """
    if num_points < 1:
        raise ValueError(f"a curve needs at least 1 point, got num_points={num_points}")
    if degree < 0:
        raise ValueError(f"degree must be 0 or more, got {degree}")
    if num_control_points <= degree:
        raise ValueError(
            f"a degree-{degree} curve needs at least {degree + 1} control points, got {num_control_points}; raise "
            "num_control_points or lower degree"
        )
    if not 0 <= margin < 0.5:
        raise ValueError(f"margin must be in [0, 0.5), got {margin}")
    inner = np.linspace(0, 1, num_control_points - degree + 1)
    knots = np.concatenate([np.zeros(degree), inner, np.ones(degree)])
    points = np.linspace(margin, 1 - margin, num_points) if num_points > 1 else np.array([0.5])
    if degree == 0:
        return BSpline.design_matrix(points, knots, degree).toarray()
    upper = BSpline.design_matrix(points[: (num_points + 1) // 2], knots, degree).toarray()
    if num_points % 2:  # the middle point; it and the knots are rounded, so that its weights may not be symmetric
        middle = (upper[-1] + upper[-1, ::-1]) / 2
        weighted = np.flatnonzero(middle)
        if len(weighted) > degree + 1:  # it lies on a knot, and the outer two weights are rounding alone
            middle[weighted[[0, -1]]] = 0.0
        upper[-1] = middle / middle.sum()
    return np.concatenate([upper, upper[: num_points // 2][::-1, ::-1]])


def _qr(design: np.ndarray) -> Factors:
    """Return the factors Q and R of a block of B, whose transpose is `design`."""
    if not design.size:
        return np.zeros((design.shape[1], 0)), np.zeros((0, design.shape[0]))
    return cast(Factors, qr(design.T, mode="economic", check_finite=False))


def _left_inverses(designs: Blocks, factors: list[Factors], *, exact: bool) -> Blocks | None:
    """Return Q R^-T for both blocks of B, the transposed left inverses, or None if they are not within `TOLERANCE`.

    Args:
        exact: Whether to return any inverse; false returns None also if the pseudo-inverse, with its cutoff, would
            differ.
    """
    if any(len(r) < r.shape[1] or not np.diagonal(r).all() for _, r in factors):
        return None
    first, second = (
        cast(np.ndarray, solve_triangular(r, np.eye(len(r)), trans=1, check_finite=False)) for _, r in factors
    )
    if not exact and _frobenius((first, second)) * _frobenius(designs) * TOLERANCE > 1:
        return None
    # solving R X = Q^T instead would leave B^+ B further from I
    inverses = factors[0][0] @ first, factors[1][0] @ second
    for design, inverse in zip(designs, inverses, strict=True):
        error = np.abs(design @ inverse - np.eye(len(design))).max(initial=0.0)
        if not error <= TOLERANCE:  # so that nan fails too
            return None
    return inverses


def _pseudo_inverses(factors: list[Factors]) -> Blocks:
    """Return the transposed pseudo-inverses of both blocks of B, with one cutoff for the singular values of both."""
    parts = [np.linalg.svd(r, full_matrices=False) for _, r in factors]
    cutoff = TOLERANCE * max(values.max(initial=0.0) for _, values, _ in parts)
    first, second = (
        (q @ (left[:, values > cutoff] / values[values > cutoff])) @ right[values > cutoff]
        for (q, _), (left, values, right) in zip(factors, parts, strict=True)
    )
    return first, second


def _frobenius(blocks: Blocks) -> float:
    return float(np.hypot(np.linalg.norm(blocks[0]), np.linalg.norm(blocks[1])))


def _deficient(num_points: int, num_control_points: int, degree: int) -> str:
    few = f"{num_points} tokens need at least as many control points, got {num_control_points}"
    curve = f"a curve of degree {degree} with {num_control_points} control points"
    steep = f"{num_points} tokens cannot be told apart on {curve}"
    return (
        f"{few if num_control_points < num_points else steep}: B^T B is singular; raise num_control_points (or "
        'num_control_points_ratio to 2), lower degree (or degree_ratio), or choose rank_deficient="pseudo_inverse" '
        "to lose the part that the curve cannot represent"
    )


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
