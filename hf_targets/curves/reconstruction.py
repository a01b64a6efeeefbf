"""What a sentence curve loses of a text: noise is mapped to control points and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from hf_targets.curves.configuration import CurveConfig
from hf_targets.maths.bsplines import basis_matrix, inverse_matrix


@dataclass(frozen=True)
class CurveReconstruction:
    """What one setting loses.

    Attributes:
        length: L, of the sequences.
        num_control_points_ratio: N_ratio.
        degree_ratio: Eta_ratio.
        num_control_points: N.
        degree: Eta.
        mse: Mean squared error of what comes back, where the noise itself has variance 1: the share that is lost.
        rank: How many of L directions the inverse keeps.
        inverse_norm: ||B^+||_2, by which errors of embeddings grow in control points.
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
    margin: float = 0.01,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> list[CurveReconstruction]:
    """Return the mean squared error of E -> P = E B^+ -> P B on standard normal noise E, for all settings.

    With the pseudo-inverse the error to expect is 1 - rank / L, plus what rounding adds.

    Args:
        lengths: L, of the sequences.
        num_control_points_ratios: N_ratio, as in `CurveConfig`; below 1 too.
        degree_ratios: Eta_ratio, as there; 0 for degree 2.
        num_sequences: How many sequences of numbers are drawn; the dimensions of an embedding would not differ.
        margin: As in `CurveConfig`.
        dtype: Type in which both mappings are applied; the matrices are computed in float64.
        seed: Of the noise, which is the same for all settings of a length.
    Returns: A row for each degree ratio, each ratio of control points, and each length, the length running fastest.
    Raises:
        ValueError: If a setting is outside its range, or there are no sequences.
    Source: Heo and Choi, "Sentence Curve Language Models", appendix C.2 and figure 8.
    """
    margin = float(margin)
    if num_sequences < 1:
        raise ValueError(f"num_sequences must be 1 or more, got {num_sequences}")
    rows = []
    for degree_ratio, ratio, length in product(degree_ratios, num_control_points_ratios, lengths):
        config = CurveConfig(
            num_control_points_ratio=ratio, degree_ratio=degree_ratio, margin=margin, rank_deficient="pseudo_inverse"
        )
        count, degree = config.num_control_points_for(length), config.degree_for(length)
        basis = basis_matrix(length, count, degree, margin)
        inverse = inverse_matrix(length, count, degree, margin, rank_deficient="pseudo_inverse", max_norm=None)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_sequences, length, generator=generator, dtype=torch.float64)
        back = noise.to(dtype) @ inverse.to(dtype) @ basis.to(dtype)
        rows.append(
            CurveReconstruction(
                length=length,
                num_control_points_ratio=ratio,
                degree_ratio=degree_ratio,
                num_control_points=count,
                degree=degree,
                mse=(back.double() - noise).square().mean().item(),
                rank=round((inverse * basis.T).sum().item()),  # the trace of B^+ B, a projection
                inverse_norm=torch.linalg.matrix_norm(inverse, 2).item(),
            )
        )
    return rows
