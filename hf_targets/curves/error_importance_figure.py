"""A figure of which errors weigh most in the control points of a sentence curve, as lemma 4.3 of the paper."""

from collections.abc import Sequence
from pathlib import Path

from hf_targets.curves.error_importance import ErrorImportance
from hf_targets.figures.canvas import new_figure


def plot_error_importance(rows: Sequence[ErrorImportance], path: Path | str) -> None:
    """Plot R and its bound, the ratio of eigenvalues, over the length: a line for each N_ratio and degree ratio.

    Args:
        rows: The result of `error_importance`.
        path: The PNG file to write.
    Raises:
        ValueError: If there are no rows.
        ImportError: If matplotlib is missing.
    """
    if not rows:
        raise ValueError("there must be a row to plot, got none; call error_importance with a length")
    degree_ratios = sorted({row.degree_ratio for row in rows})
    ratios = sorted({row.num_control_points_ratio for row in rows})
    figure = new_figure(8.5, 4)
    importance, bound = figure.subplots(1, 2)
    for number, ratio in enumerate(ratios):
        for degree_ratio, style in zip(degree_ratios, _styles(len(degree_ratios)), strict=True):
            setting = (degree_ratio, ratio)
            line = sorted(
                (row for row in rows if (row.degree_ratio, row.num_control_points_ratio) == setting),
                key=lambda row: row.length,
            )
            if not line:
                continue
            lengths, degree = [row.length for row in line], f"{degree_ratio:g} N" if degree_ratio else "2"
            label = f"N = {ratio:g} L, degree {degree}"
            look = {"color": f"C{number}", "linestyle": style, "marker": "."}
            importance.plot(lengths, [row.mean_ratio for row in line], **look)
            bound.plot(lengths, [row.eigenvalue_ratio for row in line], label=label, **look)
    importance.axhline(1, color="black", linewidth=0.8)
    importance.set(xlabel="tokens (L)", ylabel="R, mean over positions", yscale="log")
    bound.set(xlabel="tokens (L)", ylabel="bound of R", yscale="log")
    for axes in (importance, bound):
        axes.grid(alpha=0.3)
    bound.legend(fontsize="x-small")
    figure.savefig(path)


def _styles(count: int) -> list[str]:
    """Return so many styles of lines."""
    return [("-", "--", "-.", ":")[number % 4] for number in range(count)]
