"""An empty figure that is drawn into a file, without a window and without pyplot's list of open figures."""

from typing import TYPE_CHECKING

from hf_targets.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of so many inches, with 150 dots to the inch.

    Raises:
        ImportError: If matplotlib is missing.
    """
    require("matplotlib", extra="figures")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    return figure
