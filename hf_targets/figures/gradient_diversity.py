"""Gradient diversity over the steps of trainings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_targets.figures.canvas import new_figure
from hf_targets.figures.lines import MARKERS, History, plot_mean, style_axes


def plot_gradient_diversity(histories: Mapping[str, Sequence[History]], path: Path | str) -> None:
    """Draw a PNG of the gradient diversities in several models' logs (`draw_gradient_diversity`).

    Args:
        histories: By the name of the model, one log a seed.
        path: Of the PNG.
    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If no log has a gradient diversity.
    """
    draw_gradient_diversity(histories).savefig(path)


def draw_gradient_diversity(histories: Mapping[str, Sequence[History]]) -> Any:
    """Return a figure of the gradient diversities in several models' logs, as in figure 2 of the WDR paper.

    A line with markers is the mean over a model's seeds at the steps that all of them logged; thin lines are the seeds.

    Args:
        histories: By the name of the model, one log a seed.
    Returns: A `matplotlib.figure.Figure`.
    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If no log has a gradient diversity.
    """
    with_any = {
        name: seeds
        for name, seeds in histories.items()
        if any("gradient_diversity" in entry for history in seeds for entry in history)
    }
    if not with_any:
        raise ValueError("no log has a gradient diversity; train with gradient_diversity_steps, or measure checkpoints")
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    for number, (name, seeds) in enumerate(with_any.items()):
        marker = MARKERS[number % len(MARKERS)]
        plot_mean(axes, seeds, "gradient_diversity", name, color=f"C{number % 10}", marker=marker)
    axes.set(xlabel="optimizer step", ylabel="gradient diversity (equation 14)")
    style_axes(axes)
    axes.legend(frameon=False)
    return figure
