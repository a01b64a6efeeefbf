"""The curves that a masked diffusion model predicts, one for each step of filling a canvas."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device
from hf_targets.curves.configuration import CurveConfig
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.masked_diffusion.noisy_batch import check_mask
from hf_targets.maths.bsplines import basis_matrix

_CANVASES_AT_ONCE = 32


@dataclass(frozen=True)
class CurveStep:
    """The prediction of the model from one canvas. Points are float64, on the CPU, in the space of the output matrix.

    Attributes:
        canvas: (L,), token ids, without padding.
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
    attention_mask: Tensor | None = None,
    timesteps: Tensor | None = None,
    num_points: int = 500,
) -> list[CurveStep]:
    """Return the curve that the model predicts from each canvas, with dropout off.

    A `CanvasTrace` starts after the first change. To include the curve before that, put the masked canvas in front.

    Args:
        model: A model with a curve.
        canvases: (batch, length) each, such as `CanvasTrace.canvases`.
        row: Index of the row in the batch.
        attention_mask: (batch, length), 0 at padding, which is left out.
        timesteps: (canvases,), the times of the canvases, for a model with `time_conditioning`.
        num_points: Number of points along the whole curve, 2 or more.
    Raises:
        ValueError: If the model has no curve, there is no canvas, the row is out of range, a canvas is not (batch,
            length), `num_points` is below 2, or a mask has holes.
    Source: Heo and Choi, "Sentence Curve Language Models", figures 1 and 9.
    """
    curve = cast(CurveConfig | None, model.config.curve)
    if curve is None:
        raise ValueError(
            "curves_of_canvases needs a model with a curve, got config.curve=None; train a model with "
            "curve=CurveConfig(), or fine-tune model.with_curve(CurveConfig())"
        )
    if not len(canvases):
        raise ValueError(
            "there must be a canvas, got none; call generate with streamer=CanvasTrace() and give its canvases"
        )
    if canvases[0].dim() != 2:
        raise ValueError(
            f"canvases must be (batch, length) each, got {tuple(canvases[0].shape)}; give a single row as canvas[None]"
        )
    if not 0 <= row < len(canvases[0]):
        raise ValueError(f"row must be in [0, {len(canvases[0]) - 1}] for {len(canvases[0])} rows, got {row}")
    if num_points < 2:
        raise ValueError(f"num_points must be 2 or more, for the two ends of the curve, got {num_points}")
    check_mask(attention_mask, canvases[0])
    rows = torch.stack([canvas[row] for canvas in canvases]).to(execution_device(model))
    if attention_mask is not None:
        rows = rows[:, attention_mask[row].to(execution_device(model)) != 0]
    length = rows.shape[1]
    count, degree = curve.num_control_points_for(length), curve.degree_for(length)
    whole = basis_matrix(num_points, count, degree, margin=0.0).T
    at_tokens = basis_matrix(length, count, degree, float(curve.margin)).T
    steps = []
    with without_dropout(model):
        for start in range(0, len(rows), _CANVASES_AT_ONCE):
            part = slice(start, start + _CANVASES_AT_ONCE)
            times = None if timesteps is None else timesteps[part].to(execution_device(model))
            output = model(rows[part], timesteps=times, skip_logits=True, return_dict=True)
            for canvas, points in zip(rows[part].cpu(), output.control_points.double().cpu(), strict=True):
                masked = canvas == model.config.mask_token_id
                steps.append(CurveStep(canvas, masked, points, whole @ points, at_tokens @ points))
    return steps


def principal_plane(steps: Sequence[CurveStep]) -> PrincipalPlane:
    """Return the plane of the first two principal components of the control points of all steps together.

    The points of a curve are weighted means of its control points. So the projected curve is the curve of the projected
    control points.

    Raises:
        ValueError: If there is no step.
    """
    if not steps:
        raise ValueError("a plane needs at least one step, got none; call curves_of_canvases with a canvas")
    points = torch.cat([step.control_points for step in steps])
    center = points.mean(dim=0)
    deviations = points - center
    variances, axes = torch.linalg.eigh(deviations.T @ deviations)  # in ascending order
    axes, variances = axes[:, -2:].T.flip(0), variances.clamp(min=0.0)  # rounding may turn a zero negative
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    total = max(variances.sum().item(), torch.finfo(torch.float64).tiny)
    return PrincipalPlane(center, axes, (variances[-1].item() / total, variances[-2].item() / total))
