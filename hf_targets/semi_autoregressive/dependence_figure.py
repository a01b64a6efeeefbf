"""A figure of how much the words of a block depend on each other, as figure 6 of the sentence curve paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_targets.figures.canvas import new_figure
from hf_targets.maths.statistics import mean_and_standard_error
from hf_targets.semi_autoregressive.dependence import Dependence


def plot_dependence(models: Mapping[str, Sequence[Sequence[Dependence]]], path: Path | str) -> None:
    """Plot the distance correlation over the strength: a panel for each disturbance, two lines for each model.

    One line is the plain correlation, the dashed one the bias-corrected.

    Args:
        models: To each model's name what `block_dependence` found for each seed; bars are standard errors.
        path: The PNG file to write.
    Raises:
        ValueError: If there is nothing to plot.
        ImportError: If matplotlib is missing.
    Source: Heo and Choi, "Sentence Curve Language Models", figure 6.
    """
    found = [one for seeds in models.values() for seed in seeds for one in seed]
    if not found:
        raise ValueError("there must be a measurement to plot, got none; call block_dependence with dropout_rates")
    disturbances = list(dict.fromkeys(one.disturbance for one in found))
    figure = new_figure(1 + 4 * len(disturbances), 4)
    panels = figure.subplots(1, len(disturbances), sharey=True, squeeze=False)[0]
    for axes, disturbance in zip(panels, disturbances, strict=True):
        for number, (name, seeds) in enumerate(models.items()):
            disturbed = [one for seed in seeds for one in seed if one.disturbance == disturbance]
            strengths = sorted({one.strength for one in disturbed})
            if not strengths:
                continue
            alike = [[one for one in disturbed if one.strength == strength] for strength in strengths]
            for value, style in (("correlation", "-"), ("unbiased", "--")):
                values = [[getattr(one, value) for one in found] for found in alike]
                means, errors = zip(*map(mean_and_standard_error, values), strict=True)
                look = {"color": f"C{number}", "linestyle": style, "marker": ".", "capsize": 3}
                label = name if value == "correlation" else f"{name}, bias-corrected"
                axes.errorbar(strengths, means, yerr=[error or 0 for error in errors], label=label, **look)
        axes.set(xlabel={"dropout": "dropout rate", "noise": "norm of noise / norm of state"}[disturbance])
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="distance correlation of two words' logits")
    for axes in panels:
        axes.legend(fontsize="small")
    figure.savefig(path)
