"""The reconstruction error of sentence curves, measured by mapping noise to control points and back."""

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
        mse: Mean squared error of the reconstructed noise. As the noise has variance 1, it is the share that is lost.
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
    lengths: Sequence[int],
    num_control_points_ratios: Sequence[float],
    degree_ratios: Sequence[float],
    *,
    num_sequences: int = 100,
    seed: int = 0,
) -> list[CurveReconstruction]:
    """Return the mean squared error of E -> P = E B^+ -> P B on standard normal noise E, for all settings.

    The expected error is 1 - rank / L, plus rounding errors, as B^+ is the pseudo-inverse.

    Args:
        lengths: Values of L, the length of the sequences.
        num_control_points_ratios: Values of N_ratio, as in `CurveConfig`; values below 1 are allowed.
        degree_ratios: Values of Eta_ratio, as in `CurveConfig`; 0 gives degree 2.
        num_sequences: Number of random sequences of scalars. Dimensions of an embedding would only be more sequences.
        seed: Seed of the noise, which is the same for all settings of a length.
    Returns: A row for each degree ratio, ratio of control points and length, in this order; the length varies fastest.
    Raises:
        ValueError: If a setting is outside its range.
    Source: Heo and Choi, "Sentence Curve Language Models", appendix C.2 and figure 8.
    """
    if num_sequences < 1:
        raise ValueError(f"num_sequences must be 1 or more, got {num_sequences}")
    rows = []
    for degree_ratio, ratio, length in product(degree_ratios, num_control_points_ratios, lengths):
        config = CurveConfig(num_control_points_ratio=ratio, degree_ratio=degree_ratio, rank_deficient="pseudo_inverse")
        count, degree = config.num_control_points_for(length), config.degree_for(length)
        basis = basis_matrix(length, count, degree, config.margin)
        inverse = inverse_matrix(length, count, degree, config.margin, rank_deficient="pseudo_inverse", max_norm=None)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_sequences, length, generator=generator, dtype=torch.float64)
        back = noise @ inverse @ basis
        rows.append(
            CurveReconstruction(
                length=length,
                num_control_points_ratio=ratio,
                degree_ratio=degree_ratio,
                num_control_points=count,
                degree=degree,
                mse=(back - noise).square().mean().item(),
                rank=round((inverse * basis.T).sum().item()),  # the trace of B^+ B, a projection
                inverse_norm=torch.linalg.matrix_norm(inverse, 2).item(),
            )
        )
    return rows
