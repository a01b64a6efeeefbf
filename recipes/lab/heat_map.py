"""Heat maps: one number at each point of a grid, in panels that share their colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_targets.figures.canvas import new_figure


@dataclass(frozen=True)
class HeatMap:
    """One panel.

    Attributes:
        title: Above the panel.
        columns, rows: Labels, from left to right and from bottom to top.
        values: By row and column; what is not finite is left grey.
        notes: By row and column, a second line in each field.
        marked: Row and column of the field to frame, if any.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    notes: Sequence[Sequence[str]]
    marked: tuple[int, int] | None = None


def plot_heat_maps(
    panels: Sequence[HeatMap],
    path: Path | str | None = None,
    *,
    xlabel: str,
    ylabel: str,
    quantity: str,
    digits: int = 1,
) -> Any:
    """Return a figure of heat maps side by side: a colour means the same number in all of them.

    Args:
        path: Of a PNG to write as well.
        xlabel, ylabel: Of all panels.
        quantity: What the numbers are, beside the scale of colours.
        digits: Decimals of the numbers in the fields.
    Returns: A `matplotlib.figure.Figure`.
    Raises:
        ImportError: If matplotlib is missing.
    """
    widest = max(len(panel.columns) for panel in panels)
    tallest = max(len(panel.rows) for panel in panels)
    figure = new_figure(1.6 + len(panels) * max(2.8, 0.7 + 1.05 * widest), max(2.6, 1.4 + 0.75 * tallest))
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    known = [value for panel in panels for row in panel.values for value in row if math.isfinite(value)]
    scale = Normalize(min(known), max(known)) if known else Normalize(0.0, 1.0)
    colors = ScalarMappable(scale, colormaps["viridis"].with_extremes(bad="0.85"))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for number, (panel, place) in enumerate(zip(panels, axes, strict=True)):
        _draw(place, panel, colors, digits)
        place.set(title=panel.title, xlabel=xlabel, ylabel="" if number else ylabel)
    figure.colorbar(colors, ax=list(axes), label=quantity)
    if path is not None:
        figure.savefig(path)
    return figure


def _draw(axes: Any, panel: HeatMap, colors: Any, digits: int) -> None:
    from matplotlib.patches import Rectangle

    values = [[value if math.isfinite(value) else math.nan for value in row] for row in panel.values]
    axes.imshow(values, cmap=colors.cmap, norm=colors.norm, origin="lower", aspect="auto")
    axes.set_xticks(range(len(panel.columns)), panel.columns)
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, (numbers, notes) in enumerate(zip(panel.values, panel.notes, strict=True)):
        for column, (value, note) in enumerate(zip(numbers, notes, strict=True)):
            is_known = math.isfinite(value)
            text = "\n".join(filter(None, [f"{value:,.{digits}f}" if is_known else "none", note]))
            is_dark = is_known and colors.norm(value) < 0.6  # viridis grows brighter
            axes.text(column, row, text, ha="center", va="center", color="white" if is_dark else "black", fontsize=9)
    if panel.marked is not None:
        row, column = panel.marked
        frame = {"fill": False, "edgecolor": "C3", "linewidth": 2.5, "clip_on": False}
        axes.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, **frame))
