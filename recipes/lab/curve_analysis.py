"""What the mappings of sentence curves lose and which errors they weigh most: lemma 4.3 and figure 8 of the paper."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.reconstruction import CurveReconstruction
from hf_targets.figures import new_figure
from hf_targets.maths.bsplines import inverse_matrix

_SETTING = ("num_control_points_ratio", "degree_ratio")


@dataclass(frozen=True)
class ErrorImportance:
    """The importance of errors under one setting, I(V) = ||V B^+||^2 of an error V of norm 1.

    The settings are as in `CurveReconstruction`.

    Attributes:
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
    lengths: Sequence[int], num_control_points_ratios: Sequence[float], degree_ratios: Sequence[float]
) -> list[ErrorImportance]:
    """Return what errors of embeddings weigh in the control points, for all settings.

    B smooths, so its inverse enlarges what is not smooth: at high degrees the eigenvectors of B^+ (B^+)^T with the
    largest eigenvalues are errors that change from token to token. With the paper's settings R is therefore about 1 or
    below, except for texts of 2 to 7 tokens, where it is up to 1.06; where the ratio of eigenvalues is large, R is
    small.

    Args:
        lengths: Values of L, the length of the sequences.
        num_control_points_ratios: Values of N_ratio, 1 or more, where B^+ exists.
        degree_ratios: Values of Eta_ratio, as in `CurveConfig`; ratio 0 gives degree 2.
    Returns: A row for each degree ratio, ratio of control points and length, in this order; the length varies fastest.
    Source: Heo and Choi, "Sentence Curve Language Models", lemma 4.3, equations (5) and (6).
    """
    rows = []
    for degree_ratio, ratio, length in product(degree_ratios, num_control_points_ratios, lengths):
        config = CurveConfig(num_control_points_ratio=ratio, degree_ratio=degree_ratio)
        count, degree = config.num_control_points_for(length), config.degree_for(length)
        inverse = inverse_matrix(length, count, degree, max_norm=None)
        weights = inverse @ inverse.T
        # Departs: the paper's local error has the norm sqrt(d), and its global error the norm 1; here both have norm 1
        everywhere, at_one = weights.sum() / length, weights.diagonal()
        ratios, singular = everywhere / at_one, torch.linalg.svdvals(inverse)
        values = (ratios.min(), ratios.mean(), ratios.max(), (singular[0] / singular[-1]).square())
        rows.append(ErrorImportance(length, ratio, degree_ratio, count, degree, *(value.item() for value in values)))
    return rows


def plot_error_importance(rows: Sequence[ErrorImportance], path: Path | str) -> None:
    """Plot R and its bound, the ratio of eigenvalues, over the length: a line for each N_ratio and degree ratio."""
    figure = new_figure(8.5, 4)
    panels = figure.subplots(1, 2)
    for panel, color, label, line in _lines(rows):
        look = {"color": color, "linestyle": ("-", "--", "-.", ":")[panel % 4], "marker": ".", "label": label}
        for axes, value in zip(panels, ("mean_ratio", "eigenvalue_ratio"), strict=True):
            axes.plot([row.length for row in line], [getattr(row, value) for row in line], **look)
    panels[0].axhline(1, color="black", linewidth=0.8)
    for axes, name in zip(panels, ("R, mean over positions", "bound of R"), strict=True):
        axes.set(xlabel="tokens (L)", ylabel=name, yscale="log")
        axes.grid(alpha=0.3)
    panels[1].legend(fontsize="x-small")
    figure.savefig(path)


def plot_reconstruction_error(rows: Sequence[CurveReconstruction], path: Path | str) -> None:
    """Plot the mean squared error over the length: a panel for each degree ratio, a line for each N_ratio."""
    num_panels = len({row.degree_ratio for row in rows})
    figure = new_figure(1 + 3.5 * num_panels, 4)
    panels = figure.subplots(1, num_panels, sharey=True, squeeze=False)[0]
    for panel, color, label, line in _lines(rows):
        panels[panel].plot([row.length for row in line], [row.mse for row in line], ".-", color=color, label=label)
    for axes in panels:
        axes.set(xlabel="tokens (L)", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    panels[0].set(ylabel="mean squared error of unit noise")
    figure.savefig(path)


def _lines(rows: Sequence[Any]) -> Iterator[tuple[int, str, str, list[Any]]]:
    """Give the rows of each degree ratio and N_ratio: the number of the one, the colour of the other, a label, rows."""
    ratios, degrees = (sorted({getattr(row, name) for row in rows}) for name in _SETTING)
    for (ratio, degree), line in groupby(rows, key=attrgetter(*_SETTING)):  # rows of a line follow each other
        label = f"N = {ratio:g} L, degree {f'{degree:g} N' if degree else '2'}"
        yield degrees.index(degree), f"C{ratios.index(ratio)}", label, list(line)
