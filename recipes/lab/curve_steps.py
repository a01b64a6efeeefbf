"""The curves that diffusion models predict while they write, as figures 1 and 9 of the paper draw them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device
from hf_targets.curves.configuration import CurveConfig
from hf_targets.figures import new_figure
from hf_targets.figures.page_style import printable
from hf_targets.gaussian_diffusion.generation import GaussianGenerationOutput
from hf_targets.gaussian_diffusion.model import DifformerForConditionalGeneration
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.maths.bsplines import basis_matrix

_CANVASES_AT_ONCE = 32
_PANEL = (5.2, 3.9)  # inches
_MARGIN = 0.12  # around the points, as a share of their range
_DISTANCES = (9, 15, 22, 30, 40)  # in points, from a token's cross to its label, nearest first
_NUM_WITHOUT_LINE = 2  # labels at these first distances need no line to their cross
_DIRECTIONS = 16


@dataclass(frozen=True)
class CurveStep:
    """The prediction of a model in one step. Points are float64, on the CPU, in the space of the output matrix.

    Attributes:
        canvas: (L,), token ids, without padding; of a Gaussian model those nearest to its prediction.
        masked: (L,), true where a token is masked.
        control_points: (N, d), the control points; with K > 1 curves those of the most probable curve.
        curve: (points, d), points along the whole curve, from its first control point to its last.
        tokens: (L, d), the points of the curve that stand for tokens, which the output matrix turns into logits.
    """

    canvas: Tensor
    masked: Tensor
    control_points: Tensor
    curve: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class PrincipalPlane:
    """The plane in which the control points of several steps vary most.

    Attributes:
        center: (d,), the mean of the control points.
        axes: (2, d), the first two principal components, orthonormal; the largest entry of each is positive.
        shares: The share of the variance along each axis, in [0, 1]; 0 if nothing varies.
    """

    center: Tensor
    axes: Tensor
    shares: tuple[float, float]

    def project(self, points: Tensor) -> Tensor:
        """Return the coordinates (points, 2) in the plane of the projections of points (points, d)."""
        return (points - self.center) @ self.axes.T


@torch.no_grad()
def curves_of_canvases(
    model: MdlmForMaskedDiffusion,
    canvases: Sequence[Tensor] | Tensor,
    row: int = 0,
    *,
    num_points: int = 500,
) -> list[CurveStep]:
    """Return the curve that the model predicts from each canvas, with dropout off, and points along the whole of it.

    The canvases are (batch, length), without padding, such as `CanvasTrace.canvases`. These start after the first
    change: to include the curve before that, put the masked canvas in front.

    Source: Heo and Choi, "Sentence Curve Language Models", figures 1 and 9.
    """
    rows = torch.stack([canvas[row] for canvas in canvases]).to(execution_device(model))
    whole, at_tokens = _mappings(cast(CurveConfig, model.config.curve), rows.shape[1], num_points)
    steps = []
    with without_dropout(model):
        for part in rows.split(_CANVASES_AT_ONCE):
            output = model(part, skip_logits=True, return_dict=True)
            for canvas, points in zip(part.cpu(), output.control_points.double().cpu(), strict=True):
                masked = canvas == model.config.mask_token_id
                steps.append(CurveStep(canvas, masked, points, whole @ points, at_tokens @ points))
    return steps


@torch.no_grad()
def curves_of_predictions(
    model: DifformerForConditionalGeneration,
    output: GaussianGenerationOutput,
    row: int = 0,
    candidate: int = 0,
    *,
    num_points: int = 500,
) -> list[CurveStep]:
    """Return the curves that a Gaussian model predicted while it wrote a candidate of a source, one for each step.

    The output is what `generate` returns with `output_predictions=True`.
    """
    if output.control_points is None or output.predicted_embeddings is None or output.candidates is None:
        raise ValueError("curves_of_predictions needs a model with a curve, and generate(output_predictions=True)")
    curve = cast(CurveConfig, model.config.curve)
    length = int((output.candidates[row, candidate] != model.config.pad_token_id).sum())
    whole, at_tokens = _mappings(curve, length, num_points)
    steps = []
    for points, words in zip(output.control_points, output.predicted_embeddings, strict=True):
        ids = model.word_logits(words[row, candidate, None, :length]).argmax(dim=-1)[0].cpu()
        own = points[row, candidate, : curve.num_control_points_for(length)].double().cpu()
        steps.append(CurveStep(ids, torch.zeros_like(ids, dtype=torch.bool), own, whole @ own, at_tokens @ own))
    return steps


def _mappings(curve: CurveConfig, length: int, num_points: int) -> tuple[Tensor, Tensor]:
    """Return what makes points along the whole curve, and points of tokens, of control points."""
    count, degree = curve.num_control_points_for(length), curve.degree_for(length)
    at_tokens = basis_matrix(length, count, degree, float(curve.margin))
    return basis_matrix(num_points, count, degree, margin=0.0).T, at_tokens.T


def principal_plane(steps: Sequence[CurveStep]) -> PrincipalPlane:
    """Return the plane of the first two principal components of the control points of all steps together.

    The points of a curve are weighted means of its control points. So the projected curve is the curve of the projected
    control points.
    """
    points = torch.cat([step.control_points for step in steps])
    center = points.mean(dim=0)
    deviations = points - center
    variances, axes = torch.linalg.eigh(deviations.T @ deviations)  # in ascending order
    axes, variances = axes[:, -2:].T.flip(0), variances.clamp(min=0.0)  # rounding may turn a zero negative
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    total = max(variances.sum().item(), torch.finfo(torch.float64).tiny)
    return PrincipalPlane(center, axes, (variances[-1].item() / total, variances[-2].item() / total))


def plot_curve_steps(steps: Sequence[CurveStep], path: Path | str, tokenizer: Any = None, num_panels: int = 4) -> None:
    """Draw predicted curves as a PNG, one panel per step: control points, the curve, and its points for tokens.

    All panels have the same axes: the first two principal components of the control points of all steps, at the same
    scale. The panels show the first step, the last step, and steps spread evenly between them.

    A sampler draws tokens from the points of masked tokens. At an unmasked position the model returns the given token,
    wherever its point is, and training does not move that point towards the token.

    With a tokenizer the unmasked tokens are written beside their points.

    Source: Heo and Choi, "Sentence Curve Language Models", figures 1 and 9.
    """
    plane = principal_plane(steps)
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(num_panels, len(steps))).round().astype(int))
    num_columns = 2 if len(chosen) == 4 else min(len(chosen), 3)
    num_rows = -(-len(chosen) // num_columns)
    figure = new_figure(_PANEL[0] * num_columns, _PANEL[1] * num_rows + 0.9)
    panels = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False).flatten()
    points = np.concatenate([plane.project(steps[index].control_points).numpy() for index in chosen])
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    for number, (axes, index) in enumerate(zip(panels, chosen, strict=False)):
        _frame(axes, points)
        axes.tick_params(labelsize=8, labelbottom=number + num_columns >= len(chosen))
        _draw(axes, steps[index], plane)
        num_masked, num_tokens = int(steps[index].masked.sum()), len(steps[index].canvas)
        told = f": {num_masked} of {num_tokens} tokens masked" if any(step.masked.any() for step in steps) else ""
        axes.set_title(f"step {index + 1} of {len(steps)}{told}", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5 if num_columns > 1 else 2, frameon=False)
    first, second = plane.shares
    figure.supxlabel(f"first principal component, {first:.1%} of the variance", fontsize=10)
    figure.supylabel(f"second principal component, {second:.1%} of the variance", fontsize=10)
    if tokenizer is not None:
        figure.draw_without_rendering()  # fixes the axes, on which token labels depend
        figure.set_layout_engine("none")  # otherwise saving moves the axes again
        for axes, index in zip(panels, chosen, strict=False):
            _write_tokens(axes, steps[index], plane, tokenizer)
    figure.savefig(path)


def _frame(axes, points: np.ndarray) -> None:
    """Set the range of the axes so that it contains all points and has the panel's ratio of width to height."""
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
    width = min(1.6, max(0.8, 25 / len(step.canvas)))
    axes.plot(*curve, color="tab:orange", linewidth=width, label="sentence curve", zorder=1)
    axes.plot(*curve[:, :1], "o", color="tab:orange", markerfacecolor="white", label="its beginning", zorder=2)
    axes.plot(*controls, "o", color="tab:blue", markersize=4, alpha=0.75, label="control points", zorder=3)
    cross = {"color": "tab:red", "markersize": 7, "zorder": 4}
    axes.plot(*tokens[:, ~masked], "x", markeredgewidth=1.8, label="points of tokens", **cross)
    axes.plot(*tokens[:, masked], "x", alpha=0.45, label="points of masked tokens", **cross)


def _write_tokens(axes, step: CurveStep, plane: PrincipalPlane, tokenizer: Any) -> None:
    """Write each unmasked token near its point, where it covers the fewest other tokens, points and lines."""
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
            parse_math=False,  # a token may contain a dollar sign
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            arrowprops={"arrowstyle": "-", "color": "0.5", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4},
        )
        label.set_in_layout(False)
        extent = label.get_window_extent(renderer)
        size = np.array([extent.width, extent.height])
        offsets = _label_offsets(size, scale)
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


def _label_offsets(size: np.ndarray, scale: float) -> np.ndarray:
    """Return the offsets of a label's centre from its point to try, (distances * directions, 2), in pixels."""
    angles = np.linspace(0, 2 * np.pi, _DIRECTIONS, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lengths = np.array(_DISTANCES)[:, None] * scale + np.abs(directions) @ size / 2 - size.min() / 2
    return (lengths[..., None] * directions).reshape(-1, 2)


def _within(points: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which points (points, 2) lie in which boxes (boxes, 2), as (boxes, points)."""
    inside = (points > low[:, None]) & (points < high[:, None])
    return inside[..., 0] & inside[..., 1]


def _token(tokenizer: Any, token: int) -> str:
    text = printable(tokenizer.decode([token]))
    return text.strip() or text.replace("\n", "↵").replace(" ", "␣")
