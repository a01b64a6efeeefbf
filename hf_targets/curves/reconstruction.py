"""What the way from embeddings to control points and back loses of a text: the reconstruction error of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from hf_targets.curves.configuration import CurveConfig
from hf_targets.maths.bsplines import basis_matrix, inverse_matrix


@dataclass(frozen=True)
class CurveReconstruction:
    """The reconstruction error of one setting.

    Attributes:
        length: L, the length of the sequences.
        num_control_points_ratio: N_ratio.
        degree_ratio: Eta_ratio.
        num_control_points: N.
        degree: Degree of the basis.
        mse: Mean squared error of reconstructed noise of variance 1, and so the share that is lost: 1 - rank / L.
        rank: How many of L directions the inverse keeps.
        inverse_norm: ||B^+||_2, the largest factor by which an error of the embeddings grows in the control points.
    """

    length: int
    num_control_points_ratio: float
    degree_ratio: float
    num_control_points: int
    degree: int
    mse: float
    rank: int
    inverse_norm: float


def reconstruction_error(
    lengths: Sequence[int], num_control_points_ratios: Sequence[float], degree_ratios: Sequence[float]
) -> list[CurveReconstruction]:
    """Return the mean squared error of E -> P = E B^+ -> P B, expected for standard normal noise E, for all settings.

    That is |B^+ B - I|^2 / L, with the sum of the squares of all entries.

    Args:
        lengths: Values of L, the length of the sequences.
        num_control_points_ratios: Values of N_ratio, as in `CurveConfig`; values below 1 are allowed.
        degree_ratios: Values of Eta_ratio, as in `CurveConfig`; 0 gives degree 2.
    Returns: A row for each degree ratio, ratio of control points and length, in this order; the length varies fastest.
    Raises:
        ValueError: If a setting is outside its range.
    Source: Heo and Choi, "Sentence Curve Language Models", appendix C.2 and figure 8.
    """
    rows = []
    for degree_ratio, ratio, length in product(degree_ratios, num_control_points_ratios, lengths):
        config = CurveConfig(num_control_points_ratio=ratio, degree_ratio=degree_ratio, rank_deficient="pseudo_inverse")
        count, degree = config.num_control_points_for(length), config.degree_for(length)
        inverse = inverse_matrix(length, count, degree, config.margin, rank_deficient="pseudo_inverse", max_norm=None)
        projection = inverse @ basis_matrix(length, count, degree, config.margin)
        rows.append(
            CurveReconstruction(
                length=length,
                num_control_points_ratio=ratio,
                degree_ratio=degree_ratio,
                num_control_points=count,
                degree=degree,
                mse=(projection - torch.eye(length)).square().sum().item() / length,
                rank=round(projection.trace().item()),
                inverse_norm=torch.linalg.matrix_norm(inverse, 2).item(),
            )
        )
    return rows
