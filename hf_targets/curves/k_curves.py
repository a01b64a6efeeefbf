"""Prediction of several sentence curves for one text, and the choice among them."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_targets.curves.sentence_curve import SentenceCurve


class CurveMixture(nn.Module):
    """K-curve prediction: K copies of a curve, each after a learnt token, and a network that weighs the K results.

    p = softmax over k of scorer(h_k), where h_k is the last hidden state at the token of curve k. The result is sum_k
    p_k H_k in training mode, and the most probable H_k in evaluation mode.

    Args:
        dim: Width of the hidden states.
        num_curves: K, at least 2.
    Source: Heo and Choi, "Sentence Curve Language Models", section 4.2 and figure 2. The paper says only that the
        network is shallow; ours has one hidden layer as wide as the model.
    """

    def __init__(self, dim: int, num_curves: int) -> None:
        super().__init__()
        self.num_curves = num_curves
        self.tokens = nn.Parameter(torch.empty(num_curves, dim))
        # no bias in the last layer: it would shift all K scores equally
        self.scorer = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1, bias=False))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the embeddings of the K tokens at random; the scorer's layers initialise themselves."""
        init.normal_(self.tokens, std=0.02)

    def forward(self, points: Tensor) -> Tensor:
        """Return (batch * K, 1 + N, dim): each row of control points (batch, N, dim) K times, after token 1 to K."""
        batch, num_points, dim = points.shape
        tokens = self.tokens.to(points.dtype)[None, :, None].expand(batch, -1, 1, dim)
        copies = points[:, None].expand(-1, self.num_curves, -1, -1)
        return torch.cat([tokens, copies], dim=2).reshape(batch * self.num_curves, 1 + num_points, dim)

    def expand_keep(self, keep: Tensor) -> Tensor:
        """Expand a mask of real control points (batch, N) to (batch * K, 1 + N); the tokens are always real."""
        return torch.cat([keep.new_ones(len(keep), 1), keep], dim=1).repeat_interleave(self.num_curves, dim=0)

    def select(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return one curve for each text, (batch, N, dim), and the probabilities (batch, K) in float32.

        Args:
            hidden: (batch * K, 1 + N, dim), the model's last hidden states of the expanded curves.
        """
        curves = hidden.unflatten(0, (-1, self.num_curves))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        probabilities = self.scorer(curves[:, :, 0])[..., 0].to(wide).softmax(dim=-1)
        curves = curves[:, :, 1:]
        if self.training:
            points = (probabilities[..., None, None] * curves.to(wide)).sum(dim=1).to(hidden.dtype)
        else:
            best = probabilities.argmax(dim=-1)
            points = curves[torch.arange(best.shape[0], device=best.device), best]
        return points, probabilities


def curve_parts(curve: Any, dim: int) -> tuple[SentenceCurve | None, CurveMixture | None]:
    """Return the mappings of a model's curve, and the choice among K > 1 curves; None for what there is not.

    Args:
        curve: A `CurveConfig`, the field `curve` of the model's configuration; None: no curve.
        dim: Width of the hidden states.
    """
    if curve is None:
        return None, None
    return SentenceCurve(curve), None if curve.num_curves == 1 else CurveMixture(dim, curve.num_curves)
