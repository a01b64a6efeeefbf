"""Lines over the steps of trainings: a model's mean over its seeds, and each seed."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

History = Sequence[Mapping[str, float]]
"""Trainer's log, `trainer.state.log_history`."""

MARKERS = "osD^vPX*"
_DECADE = 10.0


def plot_mean(axes: Any, seeds: Sequence[History], key: str, label: str, **look: Any) -> None:
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


def style_axes(axes: Any) -> None:
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
