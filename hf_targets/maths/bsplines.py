"""B-spline curves through the tokens of a sentence: basis matrices B, and the inverses that give control points."""

import warnings
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from scipy.interpolate import BSpline
from scipy.linalg import qr, solve_triangular
from scipy.sparse import csr_array
from torch import Tensor

TOLERANCE = 1e-6
"""What is left of B^+ B - I in a usable inverse, and the share of the largest singular value that a pseudo-inverse
leaves out; it keeps the inverse usable in float32."""

RankDeficient = Literal["pseudo_inverse"]


def basis_matrix(
    num_points: int, num_control_points: int, degree: int, margin: float = 0.01
) -> Float[Tensor, "control_points points"]:
    """Return B, whose column l weighs the control points in point l of the curve: E = P B, with P as columns.

    B[n, l] = b_n(gamma_l) of the B-spline basis of the given degree. Columns sum to 1 and no weight is negative, so a
    point lies among its degree + 1 control points.

    Args:
        num_points: L, at least 1. They lie evenly in [margin, 1 - margin]; one alone lies in the middle.
        num_control_points: N, more than `degree`.
        degree: Eta, 0 or more: how many control points weigh in a point, less 1.
        margin: How much of the curve is left at either end, in [0, 0.5).
    Returns: Float64.
    Raises:
        ValueError: If an argument is outside its range.
    Source: Heo and Choi, "Sentence Curve Language Models", sections 4.1 and 5.2. The paper does not name its knots;
        ours are uniform on [0, 1] and clamped, so that the curve begins in its first control point and ends in its
        last.
    """
    design = _design(num_points, num_control_points, degree, margin)
    return torch.from_numpy(np.ascontiguousarray(design.toarray().T))


def inverse_matrix(
    num_points: int,
    num_control_points: int,
    degree: int,
    margin: float = 0.01,
    *,
    rank_deficient: RankDeficient | None = None,
    max_norm: float | None = 50.0,
) -> Float[Tensor, "points control_points"]:
    """Return B^+ = (B^T B)^-1 B^T, which gives points their control points: P = E B^+, of least norm among all P B = E.

    With B = Q R it is R^-1 Q^T, which keeps the digits that B^T B would lose. B is banded, but B^+ is not, and a banded
    Cholesky factor of B^T B was no faster (0.6 s of one core for all lengths of 2 to 250 with N = 2 L and degree
    N / 10, either way) and lost two digits.

    B has rank L only if N >= L, and then to working precision only if the degree is small against N / L: more of the
    curve than a few tokens lies under each basis function otherwise. Also N must leave no control point without a
    token, so N = L is too few once the margin is wider than a step between knots. With N < L, B^T B is singular
    whatever the degree, and the formula does not exist. Table 3 of the paper gives such a setting, N = 0.2 L, for LM1B:
    with L = 128 there are 25 control points, so that 103 of 128 directions of E are lost, and with them 81 % of unit
    noise (`reconstruction_error([128], [0.2], [0.1])`, 2026-11-21). Choosing `rank_deficient="pseudo_inverse"`
    allows it: P B is then the projection of E onto what curves can reach.

    Args:
        num_points: L, as in `basis_matrix`.
        num_control_points: N, as there.
        degree: Eta, as there.
        margin: As there.
        rank_deficient: `"pseudo_inverse"`: where B lacks rank L, take Moore and Penrose's inverse, leaving out singular
            values below `TOLERANCE` times the largest. Cut at float64's precision, an inverse is useless in float32:
            250 tokens with N = 2 L and degree N / 3 come back with an error of 1e9, in place of 0.32. None raises.
        max_norm: Warn if ||B^+||_2, by which errors of E grow in P, is larger; None: never.
    Returns: Float64.
    Raises:
        ValueError: If an argument is outside its range, or B has not rank L and `rank_deficient` is None.
    Source: Heo and Choi, "Sentence Curve Language Models", section 4.1.
    """
    if rank_deficient not in (None, "pseudo_inverse"):
        raise ValueError(f'rank_deficient must be None or "pseudo_inverse", got {rank_deficient!r}')
    design = _design(num_points, num_control_points, degree, margin)
    inverse = _left_inverse(design, exact=rank_deficient is None)
    if inverse is None and rank_deficient is None:
        raise ValueError(_deficient(num_points, num_control_points, degree))
    if inverse is None:
        inverse = np.linalg.pinv(design.toarray().T, rcond=TOLERANCE)
    if max_norm is not None and np.linalg.norm(inverse) > max_norm:  # Frobenius' norm is the larger of the two
        norm = float(np.linalg.norm(inverse, 2))
        if norm > max_norm:
            warnings.warn(
                f"the control points of {num_points} tokens on a curve of degree {degree} grow up to {norm:.3g} times "
                f"as large as the tokens (||B^+||), and float32 brings the tokens back to about {norm * 2**-24:.0e}; "
                "lower degree or degree_ratio, or raise num_control_points_ratio",
                stacklevel=2,
            )
    return torch.from_numpy(np.ascontiguousarray(inverse))


def _design(num_points: int, num_control_points: int, degree: int, margin: float) -> csr_array:
    """Return B^T, (points, control_points), each row with its degree + 1 weights."""
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
    return BSpline.design_matrix(points, knots, degree)


def _left_inverse(design: csr_array, *, exact: bool) -> np.ndarray | None:
    """Return R^-1 Q^T of B = Q R, or None where it is no inverse.

    Args:
        exact: Whether to take whatever is an inverse, or only what would be the pseudo-inverse too.
    """
    basis = design.toarray().T
    num_control_points, num_points = basis.shape
    if num_control_points < num_points:
        return None
    q, r = cast(tuple[np.ndarray, np.ndarray], qr(basis, mode="economic", check_finite=False))
    if not np.diagonal(r).all():
        return None
    transposed = cast(np.ndarray, solve_triangular(r, np.eye(num_points), trans=1, check_finite=False))
    inverse = transposed.T @ q.T  # not R^-1 solved for Q^T, from which B^+ B would be further off I
    left = np.abs(design @ inverse.T - np.eye(num_points)).max()
    if not left <= TOLERANCE:  # nor a number
        return None
    if not exact and np.linalg.norm(inverse) * np.linalg.norm(basis) * TOLERANCE > 1:
        return None
    return inverse


def _deficient(num_points: int, num_control_points: int, degree: int) -> str:
    allow = 'rank_deficient="pseudo_inverse" to lose what the curve cannot hold'
    if num_control_points < num_points:
        return (
            f"{num_points} tokens need at least as many control points, got {num_control_points}: B^T B is singular; "
            f"raise num_control_points (or num_control_points_ratio to 2), or choose {allow}"
        )
    return (
        f"{num_points} tokens cannot be told apart on a curve of degree {degree} with {num_control_points} control "
        "points, as B^T B is singular to working precision; lower degree (or degree_ratio), raise num_control_points "
        f"(or num_control_points_ratio), or choose {allow}"
    )
