"""Curves over the optimizer steps of trainings: perplexity and loss, or any other logged number."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_targets.figures import new_figure

History = Sequence[Mapping[str, float]]
"""Trainer's log, `trainer.state.log_history`."""

_SHARED = {"loss_next_token": "loss of the next token", "loss_masked_token": "loss of masked tokens"}
"""Parts of the loss that a plain model has as a whole, and what they are called."""
_MARKERS = "osD^vPX*"
_DECADE = 10.0


def plot_learning_curves(histories: Mapping[str, Sequence[History]], path: Path | str | None = None) -> Any:
    """Return a figure of several models' logs: validation perplexity, with the ensemble dashed, and training loss.

    The loss is the part that the models share, of next or of masked tokens, where one of them has heads besides. A line
    with markers is the mean over a model's seeds at the steps that all of them logged; thin lines are the seeds. An
    axis is logarithmic if its values span a decade or more.

    Args:
        histories: By the name of the model, one log a seed.
        path: Of a PNG to write as well.
    Returns: A `matplotlib.figure.Figure`.
    Raises:
        ImportError: If matplotlib is missing.
    """
    figure = new_figure(11, 4.5)
    validation, training = figure.subplots(1, 2)
    for number, (name, seeds) in enumerate(histories.items()):
        look, own = _look(number), _logged(seeds)
        _plot_mean(validation, seeds, "eval_perplexity", name, **look)
        dashed = {"linestyle": "--", "markerfacecolor": "white", **look}
        _plot_mean(validation, seeds, "eval_perplexity_ensemble", f"{name}, ensemble", **dashed)
        _plot_mean(training, seeds, next((part for part in _SHARED if part in own), "loss"), name, **look)
    logged = {key for seeds in histories.values() for key in _logged(seeds)}
    what = next((told for part, told in _SHARED.items() if part in logged), "loss")
    validation.set(xlabel="optimizer step", ylabel="validation perplexity per token", title="Validation")
    training.set(xlabel="optimizer step", ylabel=f"{what} (nats per token)", title="Training")
    entries = {}
    for axes in (validation, training):
        _style_axes(axes)
        lines, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, lines, strict=True))
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside right center", frameon=False)
    if path is not None:
        figure.savefig(path)
    return figure


def plot_logged(
    histories: Mapping[str, Sequence[History]], key: str, label: str, path: Path | str | None = None
) -> Any:
    """Return a figure of one logged number of several models, with lines as those of `plot_learning_curves`.

    Args:
        key: Of the log, such as `"gradient_diversity"` or `"eval_bleu"`; models without it are left out.
        label: Of the axis.
    """
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    for number, (name, seeds) in enumerate(histories.items()):
        _plot_mean(axes, seeds, key, name, **_look(number))
    axes.set(xlabel="optimizer step", ylabel=label)
    _style_axes(axes)
    axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path)
    return figure


def _look(number: int) -> dict[str, Any]:
    return {"color": f"C{number % 10}", "marker": _MARKERS[number % len(_MARKERS)]}


def _logged(seeds: Sequence[History]) -> set[str]:
    return {key for history in seeds for entry in history for key in entry}


def _plot_mean(axes: Any, seeds: Sequence[History], key: str, label: str, **look: Any) -> None:
    """Draw the mean over seeds at the steps they share, and each seed if there are several."""
    # the first entry of a step counts: after a training Trainer also logs what its best or averaged model has
    values = [{entry["step"]: entry[key] for entry in reversed(history) if key in entry} for history in seeds]
    values = [of_seed for of_seed in values if of_seed]
    if not values:
        return
    shared = sorted(set.intersection(*(set(of_seed) for of_seed in values)))
    means = [fmean(of_seed[step] for of_seed in values) for step in shared]
    every = max(1, len(shared) // 12)  # no more markers than can be told apart
    axes.plot(shared, means, label=label, linewidth=1.8, markersize=5, markevery=every, **look)
    for of_seed in values if len(values) > 1 else []:
        axes.plot(*zip(*sorted(of_seed.items()), strict=True), **{**look, "marker": None}, linewidth=0.6, alpha=0.4)


def _style_axes(axes: Any) -> None:
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
