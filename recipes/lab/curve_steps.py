"""The curves that a Gaussian diffusion model predicts while it writes, as figures 1 and 9 of the paper draw them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hf_targets.curves.configuration import CurveConfig
from hf_targets.extras import require
from hf_targets.figures import new_figure
from hf_targets.figures.page_style import printable
from hf_targets.gaussian_diffusion.generation import GaussianGenerationOutput
from hf_targets.gaussian_diffusion.model import DifformerForConditionalGeneration
from hf_targets.maths.bsplines import basis_matrix


@dataclass(frozen=True)
class CurveStep:
    """The prediction of a model in one step. Points are float64, on the CPU, in the space of the output matrix.

    Attributes:
        canvas: (L,), the token ids nearest to the prediction, without padding.
        control_points: (N, d), the control points; with K > 1 curves those of the most probable curve.
        curve: (500, d), points along the whole curve, from its first control point to its last.
        tokens: (L, d), the points of the curve that stand for tokens, which the output matrix turns into logits.
    """

    canvas: Tensor
    control_points: Tensor
    curve: Tensor
    tokens: Tensor


@torch.no_grad()
def curves_of_predictions(
    model: DifformerForConditionalGeneration, output: GaussianGenerationOutput
) -> list[CurveStep]:
    """Return the curves that a model predicted while it wrote the first candidate of the first source, one a step.

    The output is what `generate` of a model with a curve returns with `output_predictions=True`.
    """
    assert output.control_points is not None and output.predicted_embeddings is not None
    assert output.candidates is not None
    curve = cast(CurveConfig, model.config.curve)
    length = int((output.candidates[0, 0] != model.config.pad_token_id).sum())
    count, degree = curve.num_control_points_for(length), curve.degree_for(length)
    whole = basis_matrix(500, count, degree, margin=0.0).T
    at_tokens = basis_matrix(length, count, degree, float(curve.margin)).T
    steps = []
    for points, words in zip(output.control_points, output.predicted_embeddings, strict=True):
        ids = model.word_logits(words[0, 0, None, :length]).argmax(dim=-1)[0].cpu()
        own = points[0, 0, :count].double().cpu()
        steps.append(CurveStep(ids, own, whole @ own, at_tokens @ own))
    return steps


def plot_curve_steps(steps: Sequence[CurveStep], path: Path | str, tokenizer: Any) -> None:
    """Draw predicted curves as a PNG, one panel per step: control points, the curve, and its tokens, by name.

    All panels have the same axes: the first two principal components of the control points of all steps, at the same
    scale. Up to four panels show the first step, the last step, and steps spread evenly between them. The points of a
    curve are weighted means of its control points, so the projected curve is that of the projected control points.

    Source: Heo and Choi, "Sentence Curve Language Models", figures 1 and 9.
    """
    plane = require("sklearn.decomposition", extra="figures").PCA(2, svd_solver="full")
    plane.fit(torch.cat([step.control_points for step in steps]).numpy())
    chosen = np.unique(np.linspace(0, len(steps) - 1, 4).round().astype(int))
    figure = new_figure(10, 9)
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flatten()
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    for axes, index in zip(panels, chosen, strict=False):
        _draw(axes, steps[index], plane, tokenizer)
        axes.set(title=f"step {index + 1} of {len(steps)}", aspect="equal")
        axes.grid(alpha=0.2)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    first, second = plane.explained_variance_ratio_
    figure.supxlabel(f"first principal component, {first:.1%} of the variance", fontsize=10)
    figure.supylabel(f"second principal component, {second:.1%} of the variance", fontsize=10)
    figure.savefig(path)


def _draw(axes: Any, step: CurveStep, plane: Any, tokenizer: Any) -> None:
    from matplotlib.patheffects import withStroke

    points = (step.control_points, step.curve, step.tokens)
    controls, curve, tokens = (plane.transform(rows.numpy()) for rows in points)
    axes.plot(*curve.T, color="tab:orange", linewidth=1.2, label="sentence curve", zorder=1)
    axes.plot(*curve[:1].T, "o", color="tab:orange", markerfacecolor="white", label="its beginning", zorder=2)
    axes.plot(*controls.T, "o", color="tab:blue", markersize=4, alpha=0.75, label="control points", zorder=3)
    axes.plot(*tokens.T, "x", color="tab:red", markersize=7, label="points of tokens", zorder=4)
    for token, point in zip(step.canvas.tolist(), tokens, strict=True):
        text = printable(tokenizer.decode([token]))
        axes.annotate(
            text.strip() or text.replace("\n", "↵").replace(" ", "␣"),
            point,
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            zorder=5,
            parse_math=False,  # a token may contain a dollar sign
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
