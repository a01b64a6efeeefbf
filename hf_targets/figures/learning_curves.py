"""Learning curves: validation perplexity and training loss over optimizer steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_targets.figures.canvas import new_figure

History = Sequence[Mapping[str, float]]
"""Trainer's log, `trainer.state.log_history`."""

_DECADE = 10.0
_MARKERS = "osD^vPX*"


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
    has_heads = any(
        "loss_next_token" in entry for seeds in histories.values() for history in seeds for entry in history
    )
    for number, (name, seeds) in enumerate(histories.items()):
        look = {"color": f"C{number % 10}", "marker": _MARKERS[number % len(_MARKERS)]}
        _plot(validation, seeds, "eval_perplexity", name, **look)
        _plot(
            validation,
            seeds,
            "eval_perplexity_ensemble",
            f"{name}, ensemble",
            linestyle="--",
            markerfacecolor="white",
            **look,
        )
        of_heads = any("loss_next_token" in entry for history in seeds for entry in history)
        _plot(training, seeds, "loss_next_token" if of_heads else "loss", name, **look)
    validation.set(xlabel="optimizer step", ylabel="validation perplexity per token", title="Validation")
    what = "loss of the next token" if has_heads else "loss"
    training.set(xlabel="optimizer step", ylabel=f"{what} (nats per token)", title="Training")
    for axes in (validation, training):
        _scale(axes)
    entries = {label: line for axes in (validation, training) for line, label in zip(*_labelled(axes), strict=True)}
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside right center", frameon=False)
    return figure


def _plot(axes: Any, seeds: Sequence[History], key: str, label: str, **look: Any) -> None:
    """Draw the mean over seeds at the steps they share, and each seed if there are several."""
    values = [{entry["step"]: entry[key] for entry in history if key in entry} for history in seeds]
    values = [of_seed for of_seed in values if of_seed]
    if not values:
        return
    shared = sorted(set.intersection(*(set(of_seed) for of_seed in values)))
    means = [fmean(of_seed[step] for of_seed in values) for step in shared]
    every = max(1, len(shared) // 12)  # no more markers than can be told apart
    axes.plot(shared, means, label=label, linewidth=1.8, markersize=5, markevery=every, **look)
    for of_seed in values if len(values) > 1 else []:
        axes.plot(*zip(*sorted(of_seed.items()), strict=True), **{**look, "marker": None}, linewidth=0.6, alpha=0.4)


def _scale(axes: Any) -> None:
    """Choose the scale of the values by their span, and show numbers as they are written."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    axes.grid(alpha=0.3, which="major")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    values = [value for line in axes.lines for value in line.get_ydata()]
    if values and min(values) > 0 and max(values) / min(values) >= _DECADE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))


def _labelled(axes: Any) -> tuple[list[Any], list[str]]:
    return axes.get_legend_handles_labels()
