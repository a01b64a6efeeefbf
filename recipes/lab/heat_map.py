"""Heat maps: one number at each point of a grid, in panels that share their colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_targets.figures import new_figure


@dataclass(frozen=True)
class HeatMap:
    """One panel.

    Attributes:
        columns, rows: Labels, from left to right and from bottom to top.
        values, notes: By row and column, the number of a field and its second line; what is not finite is left grey.
        marked: Row and column of the field to frame.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    notes: Sequence[Sequence[str]]
    marked: tuple[int, int] | None = None


def plot_heat_maps(panels: Sequence[HeatMap], *, xlabel: str, ylabel: str, quantity: str) -> Any:
    """Return a matplotlib figure of panels side by side, a colour for the same number in all."""
    width, height = (max(len(getattr(panel, side)) for panel in panels) for side in ("columns", "rows"))
    figure = new_figure(1.6 + len(panels) * max(2.8, 0.7 + 1.05 * width), max(2.6, 1.4 + 0.75 * height))
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    known = [value for panel in panels for row in panel.values for value in row if math.isfinite(value)]
    scale = Normalize(min(known, default=0.0), max(known, default=1.0))
    colors = ScalarMappable(scale, colormaps["viridis"].with_extremes(bad="0.85"))
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, axes in zip(panels, every, strict=True):
        _draw(axes, panel, colors)
        axes.set(title=panel.title, xlabel=xlabel, ylabel="" if axes is not every[0] else ylabel)
    figure.colorbar(colors, ax=list(every), label=quantity)
    return figure


def _draw(axes: Any, panel: HeatMap, colors: Any) -> None:
    values = np.ma.masked_invalid(panel.values)
    axes.imshow(values, cmap=colors.cmap, norm=colors.norm, origin="lower", aspect="auto")
    axes.set_xticks(range(len(panel.columns)), panel.columns)
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(panel.values):
        is_known = math.isfinite(value)
        text = f"{value:,.1f}\n{panel.notes[row][column]}" if is_known else f"none\n{panel.notes[row][column]}"
        is_dark = is_known and colors.norm(value) < 0.6  # viridis grows brighter
        axes.text(column, row, text, ha="center", va="center", color="white" if is_dark else "black", fontsize=9)
    if panel.marked is not None:
        from matplotlib.patches import Rectangle

        row, column = panel.marked
        axes.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, fill=False, edgecolor="C3", linewidth=2.5))
