"""What the mappings of sentence curves lose and which errors they weigh most: lemma 4.3 and figure 8 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.reconstruction import CurveReconstruction
from hf_targets.figures import new_figure
from hf_targets.maths.bsplines import inverse_matrix


@dataclass(frozen=True)
class ErrorImportance:
    """The importance of errors under one setting, I(V) = ||V B^+||^2 of an error V of norm 1.

    Attributes:
        length: L, the length of the sequences.
        num_control_points_ratio: N_ratio.
        degree_ratio: Eta_ratio.
        num_control_points: N.
        degree: Degree of the basis.
        least_ratio, mean_ratio, largest_ratio: R(B^+), the importance of the same error at all positions over that of
            an error at one of them: over all positions. Above 1, errors of the whole text weigh more.
        eigenvalue_ratio: The largest eigenvalue of B^+ (B^+)^T over its smallest, which bounds R.
    """

    length: int
    num_control_points_ratio: float
    degree_ratio: float
    num_control_points: int
    degree: int
    least_ratio: float
    mean_ratio: float
    largest_ratio: float
    eigenvalue_ratio: float


def error_importance(
    lengths: Sequence[int],
    num_control_points_ratios: Sequence[float],
    degree_ratios: Sequence[float],
    *,
    margin: float = 0.01,
) -> list[ErrorImportance]:
    """Return what errors of embeddings weigh in the control points, for all settings.

    B smooths, so its inverse enlarges what is not smooth: at high degrees the eigenvectors of B^+ (B^+)^T with the
    largest eigenvalues are errors that change from token to token. With the paper's settings R is therefore about 1 or
    below, except for texts of 2 to 7 tokens, where it is up to 1.06; where the ratio of eigenvalues is large, R is
    small.

    Args:
        lengths: Values of L, the length of the sequences.
        num_control_points_ratios: Values of N_ratio, 1 or more.
        degree_ratios, margin: Values of Eta_ratio, and one margin, as in `CurveConfig`; ratio 0 gives degree 2.
    Returns: A row for each degree ratio, ratio of control points and length, in this order; the length varies fastest.
    Source: Heo and Choi, "Sentence Curve Language Models", lemma 4.3, equations (5) and (6).
    """
    if any(not ratio >= 1 for ratio in num_control_points_ratios):
        raise ValueError(f"N_ratio must be 1 or more, where B^+ exists, got {list(num_control_points_ratios)}")
    rows = []
    for degree_ratio, ratio, length in product(degree_ratios, num_control_points_ratios, lengths):
        config = CurveConfig(num_control_points_ratio=ratio, degree_ratio=degree_ratio, margin=float(margin))
        count, degree = config.num_control_points_for(length), config.degree_for(length)
        inverse = inverse_matrix(length, count, degree, float(margin), max_norm=None)
        weights = inverse @ inverse.T
        # Departs: the paper's local error has the norm sqrt(d), and its global error the norm 1; here both have norm 1
        everywhere, at_one = weights.sum() / length, weights.diagonal()
        ratios, singular = everywhere / at_one, torch.linalg.svdvals(inverse)
        rows.append(
            ErrorImportance(
                length=length,
                num_control_points_ratio=ratio,
                degree_ratio=degree_ratio,
                num_control_points=count,
                degree=degree,
                least_ratio=ratios.min().item(),
                mean_ratio=ratios.mean().item(),
                largest_ratio=ratios.max().item(),
                eigenvalue_ratio=(singular[0] / singular[-1]).square().item(),
            )
        )
    return rows


def plot_error_importance(rows: Sequence[ErrorImportance], path: Path | str) -> None:
    """Plot R and its bound, the ratio of eigenvalues, over the length: a line for each N_ratio and degree ratio."""
    figure = new_figure(8.5, 4)
    importance, bound = figure.subplots(1, 2)
    degree_ratios = sorted({row.degree_ratio for row in rows})
    for (degree_ratio, ratio), line in _lines(rows).items():
        number, style = line[0], ("-", "--", "-.", ":")[degree_ratios.index(degree_ratio) % 4]
        label = f"N = {ratio:g} L, degree {f'{degree_ratio:g} N' if degree_ratio else '2'}"
        look = {"color": f"C{number}", "linestyle": style, "marker": ".", "label": label}
        lengths = [row.length for row in line[1]]
        importance.plot(lengths, [row.mean_ratio for row in line[1]], **look)
        bound.plot(lengths, [row.eigenvalue_ratio for row in line[1]], **look)
    importance.axhline(1, color="black", linewidth=0.8)
    for axes, name in ((importance, "R, mean over positions"), (bound, "bound of R")):
        axes.set(xlabel="tokens (L)", ylabel=name, yscale="log")
        axes.grid(alpha=0.3)
    bound.legend(fontsize="x-small")
    figure.savefig(path)


def plot_reconstruction_error(rows: Sequence[CurveReconstruction], path: Path | str) -> None:
    """Plot the mean squared error over the length: a panel for each degree ratio, a line for each N_ratio."""
    degree_ratios = sorted({row.degree_ratio for row in rows})
    figure = new_figure(1 + 3.5 * len(degree_ratios), 4)
    panels = figure.subplots(1, len(degree_ratios), sharey=True, squeeze=False)[0]
    for (degree_ratio, ratio), (number, line) in _lines(rows).items():
        axes = panels[degree_ratios.index(degree_ratio)]
        look = {"color": f"C{number}", "label": f"N = {ratio:g} L"}
        axes.plot([row.length for row in line], [row.mse for row in line], ".-", **look)
        axes.set(xlabel="tokens (L)", yscale="log", title=f"degree {degree_ratio:g} N" if degree_ratio else "degree 2")
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="mean squared error of unit noise")
    panels[0].legend()
    figure.savefig(path)


def _lines(rows: Sequence[Any]) -> dict[tuple[float, float], tuple[int, list[Any]]]:
    """Return rows by degree ratio and N_ratio, in the order of their lengths, with the number of the N_ratio."""
    ratios = sorted({row.num_control_points_ratio for row in rows})
    lines: dict[tuple[float, float], tuple[int, list[Any]]] = {}
    for row in sorted(rows, key=lambda row: row.length):
        setting = (row.degree_ratio, row.num_control_points_ratio)
        lines.setdefault(setting, (ratios.index(row.num_control_points_ratio), []))[1].append(row)
    return lines
