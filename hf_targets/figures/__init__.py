"""Figures, drawn from what training and evaluation wrote."""

from typing import Any

from hf_targets.extras import require


def new_figure(width: float, height: float) -> Any:
    """Return an empty `matplotlib.figure.Figure` of so many inches, with 150 dots to the inch.

    It is drawn into a file, without a window and without pyplot's list of open figures.

    Raises:
        ImportError: If matplotlib is missing.
    """
    figure = require("matplotlib.figure", extra="figures").Figure((width, height), dpi=150, layout="constrained")
    require("matplotlib.backends.backend_agg", extra="figures").FigureCanvasAgg(figure)
    return figure
