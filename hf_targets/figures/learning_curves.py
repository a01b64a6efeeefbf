"""Learning curves: validation perplexity and training loss over optimizer steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_targets.extras import require

History = Sequence[dict[str, float]]
"""Trainer's log, `trainer.state.log_history`."""


def plot_learning_curves(histories: Mapping[str, Sequence[History]], path: Path | str) -> None:
    """Draw a PNG of several models' logs: perplexity with (dashed) and without (solid) the ensemble, and loss parts.

    Args:
        histories: By the name of the model, one log a seed; each is a line of its own, in the model's colour.
        path: Of the PNG.
    Raises:
        ImportError: If matplotlib is missing.
    """
    require("matplotlib", extra="figures")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    validation, training = figure.subplots(1, 2)
    heads = any("loss_next_token" in entry for seeds in histories.values() for history in seeds for entry in history)
    for number, (name, seeds) in enumerate(histories.items()):
        for place, history in enumerate(seeds):
            label = name if place == 0 else None
            ensemble = None if label is None else f"{label}, ensemble"
            _plot(validation, history, "eval_perplexity", f"C{number}", "-", label)
            _plot(validation, history, "eval_perplexity_ensemble", f"C{number}", "--", ensemble)
            key = "loss_next_token" if any("loss_next_token" in entry for entry in history) else "loss"
            _plot(training, history, key, f"C{number}", "-", label)
    validation.set(xlabel="optimizer step", ylabel="validation perplexity per token", yscale="log")
    what = "training loss of the next word" if heads else "training loss"
    training.set(xlabel="optimizer step", ylabel=f"{what} (nats per token)")
    for axes in (validation, training):
        axes.grid(alpha=0.3, which="both")
        if axes.lines:
            axes.legend()
    figure.savefig(path, dpi=150)


def _plot(axes, history: History, key: str, color: str, style: str, label: str | None) -> None:
    points = [(entry["step"], entry[key]) for entry in history if key in entry]
    if points:
        axes.plot(*zip(*points, strict=True), style, color=color, label=label, linewidth=1)
