"""A figure of the reconstruction error of sentence curves over the length of the text, as figure 8 of the paper."""

from collections.abc import Sequence
from pathlib import Path

from hf_targets.curves.reconstruction import CurveReconstruction
from hf_targets.figures.canvas import new_figure


def plot_reconstruction_error(rows: Sequence[CurveReconstruction], path: Path | str) -> None:
    """Plot the mean squared error over the length: a panel for each degree ratio, a line for each N_ratio.

    Args:
        rows: The result of `reconstruction_error`.
        path: The PNG file to write.
    Raises:
        ValueError: If there are no rows.
        ImportError: If matplotlib is missing.
    Source: Heo and Choi, "Sentence Curve Language Models", figure 8.
    """
    if not rows:
        raise ValueError("there must be a row to plot, got none; call reconstruction_error with a length")
    degree_ratios = sorted({row.degree_ratio for row in rows})
    ratios = sorted({row.num_control_points_ratio for row in rows})
    figure = new_figure(1 + 3.5 * len(degree_ratios), 4)
    panels = figure.subplots(1, len(degree_ratios), sharey=True, squeeze=False)[0]
    for axes, degree_ratio in zip(panels, degree_ratios, strict=True):
        for number, ratio in enumerate(ratios):
            setting = (degree_ratio, ratio)
            line = sorted(
                (row.length, row.mse) for row in rows if (row.degree_ratio, row.num_control_points_ratio) == setting
            )
            if line:
                axes.plot(*zip(*line, strict=True), ".-", color=f"C{number}", label=f"N = {ratio:g} L")
        axes.set(xlabel="tokens (L)", yscale="log", title=f"degree {degree_ratio:g} N" if degree_ratio else "degree 2")
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="mean squared error of unit noise")
    panels[0].legend()
    figure.savefig(path)
