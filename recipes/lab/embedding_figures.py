"""Figures of embeddings: those of the paper on degeneration, and two more."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hf_targets.figures import new_figure
from lab.embeddings import Inspection

_MOST_POINTS = 20_000
_FEW_PAIRS = 1000


def draw_projections(inspections: Mapping[str, Inspection]) -> Any:
    """Draw the embeddings on their first two singular vectors, a panel for each model, the origin marked.

    Hidden states that have labels are drawn in the colour of their class, and the embeddings as triangles.

    Source: Gao et al. 2019, figures 1 and 2 (a).
    """
    figure, panels = _panels(inspections)
    for axes, one in zip(panels, inspections.values(), strict=True):
        points = one.geometry.projection
        if one.hidden_states is not None:
            axes.scatter(*one.hidden_states.T, c=one.labels, s=4, alpha=0.5, cmap="tab10", linewidths=0)
            points = points * (one.hidden_states.abs().max() / points.abs().max())
            axes.scatter(*points.T, s=40, marker="^", color="tab:blue", edgecolors="black", linewidths=0.6)
        else:
            every = -(-one.geometry.num_rows // _MOST_POINTS)
            axes.scatter(*points[::every].T, s=2, alpha=0.4, linewidths=0, rasterized=True)
        for line in (axes.axhline, axes.axvline):
            line(0, color="black", linewidth=0.8)
        axes.set(xlabel="first singular vector", aspect="equal", adjustable="datalim")
    panels[0].set(ylabel="second singular vector")
    return figure


def draw_singular_values(inspections: Mapping[str, Inspection]) -> Any:
    """Draw the singular values over the largest, a line for each model; Gao et al. 2019, figure 2 (b)."""
    figure, axes = _axes(xlabel="rank", ylabel="singular value / largest", ylim=(0, 1.02))
    for name, one in inspections.items():
        values = one.geometry.singular_values
        axes.plot(torch.arange(1, len(values) + 1), values, label=name)
    axes.legend()
    return figure


def draw_cosines(inspections: Mapping[str, Inspection]) -> Any:
    """Draw how many pairs of embeddings have which cosine, a line for each model."""
    figure, axes = _axes(xlabel="cosine of two embeddings", ylabel="density")
    for name, one in inspections.items():
        counts = one.geometry.cosine_counts
        if counts.sum() < _FEW_PAIRS:
            counts = counts.view(-1, 10).sum(dim=1)
        middles = (torch.arange(len(counts)) + 0.5) * (2 / len(counts)) - 1
        axes.plot(middles, counts / counts.sum() * (len(counts) / 2), label=name)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.legend()
    return figure


def draw_norms(inspections: Mapping[str, Inspection]) -> Any:
    """Draw each embedding's norm over its word's frequency; words that do not occur at a frequency of 1/2."""
    figure, panels = _panels(inspections)
    for axes, one in zip(panels, inspections.values(), strict=True):
        every = -(-one.geometry.num_rows // _MOST_POINTS)
        frequencies = torch.as_tensor(one.frequencies, dtype=torch.float64).clamp(min=0.5)
        axes.scatter(frequencies[::every], one.geometry.norms[::every], s=2, alpha=0.4, linewidths=0, rasterized=True)
        axes.set(xlabel="frequency of the word", xscale="log")
    panels[0].set(ylabel="norm of its embedding")
    return figure


FIGURES: dict[str, tuple[Callable[[Mapping[str, Inspection]], Any], str]] = {
    "projections": (draw_projections, "Embeddings on their first two singular vectors; lines meet at the origin."),
    "singular_values": (draw_singular_values, "Singular values over the largest: a steep fall is a narrow space."),
    "cosines": (draw_cosines, "Cosines of pairs of embeddings: right of 0 in a cone."),
    "norms": (draw_norms, "Norms of embeddings over the frequency of their words."),
}
"""What draws each figure, and what it shows."""


def write_figures(inspections: Mapping[str, Inspection], folder: Path) -> str:
    """Write each figure as a PNG into a folder, and return the lines of Markdown that show them."""
    lines = []
    counted = {name: one for name, one in inspections.items() if one.frequencies is not None}
    for name, (draw, caption) in FIGURES.items():
        if shown := counted if draw is draw_norms else inspections:
            draw(shown).savefig(folder / f"{name}.png")
            lines.append(f"![{caption}]({name}.png)\n\n{caption}")
    return "\n\n".join(lines)


def _axes(**settings: Any) -> tuple[Any, Any]:
    figure = new_figure(6, 4)
    axes = figure.subplots()
    axes.set(**settings)
    axes.grid(alpha=0.3)
    return figure, axes


def _panels(inspections: Mapping[str, Inspection]) -> tuple[Any, Any]:
    figure = new_figure(1 + 4 * len(inspections), 4.2)
    panels = figure.subplots(1, len(inspections), squeeze=False)[0]
    for axes, name in zip(panels, inspections, strict=True):
        axes.set_title(name)
    return figure, panels
