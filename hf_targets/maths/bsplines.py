"""B-spline curves through the tokens of a sentence: basis matrices B, and their inverses, which give control points."""

import warnings
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from scipy.interpolate import BSpline
from scipy.linalg import pinv, qr, solve_triangular
from torch import Tensor

TOLERANCE = 1e-6
"""Largest allowed entry of |B^+ B - I| for an inverse B^+. The pseudo-inverse drops singular values below this share of
the largest, which keeps it usable in float32."""

RankDeficient = Literal["pseudo_inverse"]


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

    It is computed as R^-1 Q^T from B = Q R, which keeps digits that B^T B would lose. B has rank L only if N >= L, no
    control point is without a token, and (to working precision) the degree is small compared with N / L. Where it is
    not, `rank_deficient="pseudo_inverse"` makes P B the projection of E onto all curves.

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
    basis = _design(num_points, num_control_points, degree, margin).T
    if rank_deficient is None:
        inverse = _left_inverse(basis)
        if inverse is None:
            raise ValueError(_deficient(num_points, num_control_points, degree))
    else:
        inverse = cast(np.ndarray, pinv(basis, rtol=TOLERANCE))
    if max_norm is not None and np.linalg.norm(inverse) > max_norm:  # the Frobenius norm bounds the spectral norm
        norm = float(np.linalg.norm(inverse, 2))
        if norm > max_norm:
            warnings.warn(
                f"control points of {num_points} tokens on a curve of degree {degree} may be {norm:.3g} times as large "
                f"as the tokens (||B^+||): float32 restores tokens only to about {norm * 2**-24:.0e}; lower degree or "
                "degree_ratio, or raise num_control_points_ratio",
                stacklevel=2,
            )
    return torch.from_numpy(np.ascontiguousarray(inverse))


def _design(num_points: int, num_control_points: int, degree: int, margin: float) -> np.ndarray:
    """Return B^T, (points, control_points), with degree + 1 weights in each row."""
    if num_control_points <= degree:
        raise ValueError(
            f"a degree-{degree} curve needs at least {degree + 1} control points, got {num_control_points}; raise "
            "num_control_points or lower degree"
        )
    inner = np.linspace(0, 1, num_control_points - degree + 1)
    knots = np.concatenate([np.zeros(degree), inner, np.ones(degree)])
    points = np.linspace(margin, 1 - margin, num_points) if num_points > 1 else np.array([0.5])
    return BSpline.design_matrix(points, knots, degree).toarray()


def _left_inverse(basis: np.ndarray) -> np.ndarray | None:
    """Return R^-1 Q^T, or None if it is no inverse within `TOLERANCE`."""
    q, r = cast(tuple[np.ndarray, np.ndarray], qr(basis, mode="economic", check_finite=False))
    if len(r) < r.shape[1] or not np.diagonal(r).all():
        return None
    # solving R X = Q^T, or R X = I, instead would leave B^+ B further from I
    inverse = cast(np.ndarray, solve_triangular(r, np.eye(len(r)), trans=1, check_finite=False)).T @ q.T
    error = np.abs(inverse @ basis - np.eye(len(inverse))).max()
    return inverse if error <= TOLERANCE else None  # nan is not


def _deficient(num_points: int, num_control_points: int, degree: int) -> str:
    few = f"{num_points} tokens need at least as many control points, got {num_control_points}"
    curve = f"a curve of degree {degree} with {num_control_points} control points"
    steep = f"{num_points} tokens cannot be told apart on {curve}"
    return (
        f"{few if num_control_points < num_points else steep}: B^T B is singular; raise num_control_points (or "
        'num_control_points_ratio to 2), lower degree (or degree_ratio), or choose rank_deficient="pseudo_inverse" '
        "to lose the part that the curve cannot represent"
    )
