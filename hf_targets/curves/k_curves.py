"""Several sentence curves predicted for one text, and the choice among them."""

import torch
from torch import Tensor, nn
from transformers import initialization as init


class CurveMixture(nn.Module):
    """K-curve prediction: K copies of a curve, each behind a token of its own, and a network that weighs the K results.

    p = softmax over k of scorer(h_k), with h_k the last hidden state at the k-th curve's token. A training pass gives
    sum_k p_k H_k, any other pass the most probable H_k.

    Args:
        dim: Width of the hidden states.
        num_curves: K, at least 2.
    Raises:
        ValueError: With fewer curves, which leave nothing to weigh.
    Source: Heo and Choi, "Sentence Curve Language Models", section 4.2 and figure 2. Of the network the paper says that
        it is shallow; ours has one hidden layer as wide as the model.
    """

    def __init__(self, dim: int, num_curves: int) -> None:
        super().__init__()
        if num_curves < 2:
            raise ValueError(
                f"a choice among curves needs at least 2 of them, got num_curves={num_curves}; leave it out"
            )
        self.num_curves = num_curves
        self.tokens = nn.Parameter(torch.empty(num_curves, dim))
        # no last bias: it would move all K scores alike
        self.scorer = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1, bias=False))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the curves' tokens anew; the scorer's layers have a method of their own."""
        init.normal_(self.tokens, std=0.02)

    def forward(self, points: Tensor) -> Tensor:
        """Return (batch * K, 1 + N, dim): each row of control points (batch, N, dim) K times, behind each token."""
        batch, num_points, dim = points.shape
        tokens = self.tokens.to(points.dtype)[None, :, None].expand(batch, -1, 1, dim)
        copies = points[:, None].expand(-1, self.num_curves, -1, -1)
        return torch.cat([tokens, copies], dim=2).reshape(batch * self.num_curves, 1 + num_points, dim)

    def expand_keep(self, keep: Tensor) -> Tensor:
        """Return which of the expanded positions are real, (batch * K, 1 + N), from (batch, N): tokens always are."""
        return torch.cat([keep.new_ones(len(keep), 1), keep], dim=1).repeat_interleave(self.num_curves, dim=0)

    def select(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return one curve (batch, N, dim) a text, and the probabilities (batch, K) in float32.

        Args:
            hidden: (batch * K, 1 + N, dim), what the model made of the expanded curves.
        """
        curves = hidden.unflatten(0, (-1, self.num_curves))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        probabilities = self.scorer(curves[:, :, 0])[..., 0].to(wide).softmax(dim=-1)
        curves = curves[:, :, 1:]
        if self.training:
            points = (probabilities[..., None, None] * curves.to(wide)).sum(dim=1).to(hidden.dtype)
        else:
            best = probabilities.argmax(dim=-1)
            points = curves[torch.arange(len(best), device=best.device), best]
        return points, probabilities
