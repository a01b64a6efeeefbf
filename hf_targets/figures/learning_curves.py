"""Learning curves: validation perplexity and training loss over optimizer steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_targets.extras import require


def plot_learning_curves(histories: Mapping[str, Sequence[dict[str, float]]], path: Path | str) -> None:
    """Draw a PNG of several models' logs: perplexity with (dashed) and without (solid) the ensemble, and loss parts.

    Args:
        histories: `trainer.state.log_history` by the name of the model.
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
    heads = any("loss_next_word" in entry for history in histories.values() for entry in history)
    for number, (name, history) in enumerate(histories.items()):
        color = f"C{number}"
        _plot(validation, history, "eval_perplexity", color, "-", name)
        _plot(validation, history, "eval_perplexity_ensemble", color, "--", f"{name}, ensemble")
        key = "loss_next_word" if any("loss_next_word" in entry for entry in history) else "loss"
        _plot(training, history, key, color, "-", name)
    validation.set(xlabel="optimizer step", ylabel="validation perplexity per token", yscale="log")
    what = "training loss of the next word" if heads else "training loss"
    training.set(xlabel="optimizer step", ylabel=f"{what} (nats per token)")
    for axes in (validation, training):
        axes.grid(alpha=0.3, which="both")
        if axes.lines:
            axes.legend()
    figure.savefig(path, dpi=150)


def _plot(axes, history: Sequence[dict[str, float]], key: str, color: str, style: str, label: str) -> None:
    points = [(entry["step"], entry[key]) for entry in history if key in entry]
    if points:
        axes.plot(*zip(*points, strict=True), style, color=color, label=label)
