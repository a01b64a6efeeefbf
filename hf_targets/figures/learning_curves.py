"""Learning curves: validation perplexity and training loss over optimizer steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_targets.figures.canvas import new_figure
from hf_targets.figures.lines import MARKERS, History, plot_mean, style_axes

_SHARED = {"loss_next_token": "loss of the next token", "loss_masked_token": "loss of masked tokens"}
"""Parts of the loss that a plain model has as a whole, and what they are called."""


def plot_learning_curves(histories: Mapping[str, Sequence[History]], path: Path | str) -> None:
    """Draw a PNG of several models' logs (`draw_learning_curves`).

    Args:
        histories: By the name of the model, one log a seed.
        path: Of the PNG.
    Raises:
        ImportError: If matplotlib is missing.
    """
    draw_learning_curves(histories).savefig(path)


def draw_learning_curves(histories: Mapping[str, Sequence[History]]) -> Any:
    """Return a figure of several models' logs: validation perplexity, with the ensemble dashed, and training loss.

    The loss is the part that the models share, of next or of masked tokens, where one of them has heads besides.

    A line with markers is the mean over a model's seeds at the steps that all of them logged; thin lines are the seeds.
    An axis is logarithmic if its values span a decade or more.

    Args:
        histories: By the name of the model, one log a seed.
    Returns: A `matplotlib.figure.Figure`.
    Raises:
        ImportError: If matplotlib is missing.
    """
    figure = new_figure(11, 4.5)
    validation, training = figure.subplots(1, 2)
    logged = {key for seeds in histories.values() for history in seeds for entry in history for key in entry}
    for number, (name, seeds) in enumerate(histories.items()):
        look = {"color": f"C{number % 10}", "marker": MARKERS[number % len(MARKERS)]}
        plot_mean(validation, seeds, "eval_perplexity", name, **look)
        plot_mean(
            validation,
            seeds,
            "eval_perplexity_ensemble",
            f"{name}, ensemble",
            linestyle="--",
            markerfacecolor="white",
            **look,
        )
        own = {key for history in seeds for entry in history for key in entry}
        plot_mean(training, seeds, next((part for part in _SHARED if part in own), "loss"), name, **look)
    validation.set(xlabel="optimizer step", ylabel="validation perplexity per token", title="Validation")
    what = next((told for part, told in _SHARED.items() if part in logged), "loss")
    training.set(xlabel="optimizer step", ylabel=f"{what} (nats per token)", title="Training")
    for axes in (validation, training):
        style_axes(axes)
    entries = {label: line for axes in (validation, training) for line, label in zip(*_labelled(axes), strict=True)}
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside right center", frameon=False)
    return figure


def _labelled(axes: Any) -> tuple[list[Any], list[str]]:
    return axes.get_legend_handles_labels()
