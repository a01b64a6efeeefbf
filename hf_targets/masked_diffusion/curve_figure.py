"""Sentence curves over the steps of filling a canvas, as figures 1 and 9 of the paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_targets.extras import require
from hf_targets.masked_diffusion.curve_steps import CurveStep, PrincipalPlane, principal_plane

_PANEL = (5.2, 3.9)  # inches
_MARGIN = 0.12  # of the wider side, around what is drawn
_DISTANCES = (9, 15, 22, 30, 40)  # points from a token's cross to its label, nearest first
_NUM_WITHOUT_LINE = 2  # of these; from further off a line leads there
_DIRECTIONS = 16


def plot_curve_steps(
    steps: Sequence[CurveStep],
    path: Path | str,
    tokenizer: Any = None,
    num_panels: int = 4,
) -> None:
    """Draw a PNG of predicted curves, a panel a step: control points, the curve, and the points read as tokens.

    All panels have the same axes, the first two principal components of all steps' control points, and the same scale
    in both directions. The panels are the first step, the last, and others evenly between them.

    The points of masked tokens are those that a sampler reads tokens from. At a token that is not masked the model
    gives that token whatever its point is, and is not trained to bring the point near it.

    Args:
        steps: From `curves_of_canvases`.
        path: Of the PNG.
        tokenizer: Writes the tokens that are not masked beside their points; None: none are written.
        num_panels: How many steps are drawn, all if there are fewer.
    Raises:
        ValueError: If there are no steps, or `num_panels` is below 1.
        ImportError: If matplotlib is missing.
    Source: Heo and Choi, "Sentence Curve Language Models", figures 1 and 9.
    """
    if num_panels < 1:
        raise ValueError(f"num_panels must be 1 or more, got {num_panels}")
    plane = principal_plane(steps)
    require("matplotlib", extra="figures")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = np.unique(np.linspace(0, len(steps) - 1, min(num_panels, len(steps))).round().astype(int))
    num_columns = 2 if len(chosen) == 4 else min(len(chosen), 3)
    num_rows = -(-len(chosen) // num_columns)
    figure = Figure(figsize=(_PANEL[0] * num_columns, _PANEL[1] * num_rows + 0.9), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    panels = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False).flatten()
    points = np.concatenate([plane.project(steps[index].control_points).numpy() for index in chosen])
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    for number, (axes, index) in enumerate(zip(panels, chosen, strict=False)):
        _frame(axes, points)
        axes.tick_params(labelsize=8, labelbottom=number + num_columns >= len(chosen))
        _draw(axes, steps[index], plane)
        num_masked, num_tokens = int(steps[index].masked.sum()), len(steps[index].canvas)
        axes.set_title(f"canvas {index + 1} of {len(steps)}: {num_masked} of {num_tokens} tokens masked", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5 if num_columns > 1 else 2, frameon=False)
    first, second = plane.shares
    figure.supxlabel(f"first principal component, {first:.1%} of the variance", fontsize=10)
    figure.supylabel(f"second principal component, {second:.1%} of the variance", fontsize=10)
    if tokenizer is not None:
        figure.draw_without_rendering()  # lays out the axes, by which tokens are placed
        figure.set_layout_engine("none")  # saving would move them again
        for axes, index in zip(panels, chosen, strict=False):
            _write_tokens(axes, steps[index], plane, tokenizer)
    figure.savefig(path)


def _frame(axes, points: np.ndarray) -> None:
    """Give axes a range that holds all points, as wide to high as the panel."""
    low, high = points.min(axis=0), points.max(axis=0)
    center, size = (low + high) / 2, np.maximum(high - low, 1e-9)
    height = max(size[1], size[0] * _PANEL[1] / _PANEL[0]) * (1 + 2 * _MARGIN)
    half = np.array([height * _PANEL[0] / _PANEL[1], height]) / 2
    axes.set(xlim=(center[0] - half[0], center[0] + half[0]), ylim=(center[1] - half[1], center[1] + half[1]))
    axes.set_aspect("equal")
    axes.grid(alpha=0.2)


def _draw(axes, step: CurveStep, plane: PrincipalPlane) -> None:
    controls, curve, tokens = (plane.project(rows).numpy().T for rows in (step.control_points, step.curve, step.tokens))
    masked = step.masked.numpy()
    axes.plot(
        *curve,
        color="tab:orange",
        linewidth=min(1.6, max(0.8, 25 / len(step.canvas))),
        label="sentence curve",
        zorder=1,
    )
    axes.plot(*curve[:, :1], "o", color="tab:orange", markerfacecolor="white", label="its beginning", zorder=2)
    axes.plot(*controls, "o", color="tab:blue", markersize=4, alpha=0.75, label="control points", zorder=3)
    cross = {"color": "tab:red", "markersize": 7, "zorder": 4}
    axes.plot(*tokens[:, ~masked], "x", markeredgewidth=1.8, label="points of tokens", **cross)
    axes.plot(*tokens[:, masked], "x", alpha=0.45, label="points of masked tokens", **cross)


def _write_tokens(axes, step: CurveStep, plane: PrincipalPlane, tokenizer: Any) -> None:
    """Write each token that is not masked near its point, where it hides the least of other tokens and lines."""
    from matplotlib.patheffects import withStroke

    renderer, scale = axes.figure.canvas.get_renderer(), axes.figure.dpi / 72
    panel = axes.get_window_extent(renderer)
    tokens, controls, curve = (
        axes.transData.transform(plane.project(rows).numpy()) for rows in (step.tokens, step.control_points, step.curve)
    )
    taken: list[np.ndarray] = []
    for position in (~step.masked).nonzero().flatten().tolist():
        label = axes.annotate(
            _token(tokenizer, int(step.canvas[position])),
            plane.project(step.tokens[position : position + 1])[0].tolist(),
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=9,
            zorder=5,
            parse_math=False,  # a dollar sign is one
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            arrowprops={"arrowstyle": "-", "color": "0.5", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4},
        )
        label.set_in_layout(False)
        extent = label.get_window_extent(renderer)
        size = np.array([extent.width, extent.height])
        offsets = _ways_out(size, scale)
        low = tokens[position] + offsets - size / 2
        high = low + size
        overlaps = [((low < box[1]) & (high > box[0])).all(axis=1) for box in taken]
        costs = (
            np.repeat(_DISTANCES, _DIRECTIONS) / 10
            + 6 * _within(tokens, low - 4, high + 4).sum(axis=1)
            + 2 * _within(controls, low, high).sum(axis=1)
            + 20 * _within(curve, low, high).mean(axis=1)
            + 12 * np.sum(overlaps, axis=0)
            + 100 * ((low < panel.min) | (high > panel.max)).any(axis=1)
        )
        best = int(costs.argmin())
        label.xyann = tuple(offsets[best] / scale)
        label.arrow_patch.set_visible(best >= _NUM_WITHOUT_LINE * _DIRECTIONS)
        taken.append(np.stack([low[best], high[best]]))


def _ways_out(size: np.ndarray, scale: float) -> np.ndarray:
    """Return where a label's middle may be, (distances * directions, 2), from its point, in pixels."""
    angles = np.linspace(0, 2 * np.pi, _DIRECTIONS, endpoint=False)
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lengths = np.array(_DISTANCES)[:, None] * scale + np.abs(ways) @ size / 2 - size.min() / 2
    return (lengths[..., None] * ways).reshape(-1, 2)


def _within(points: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which points (points, 2) lie in which boxes (boxes, 2), as (boxes, points)."""
    inside = (points > low[:, None]) & (points < high[:, None])
    return inside[..., 0] & inside[..., 1]


def _token(tokenizer: Any, token: int) -> str:
    text = tokenizer.decode([token])
    return text.strip() or text.replace("\n", "↵").replace(" ", "␣")
