"""Speculative sampling: accept or replace drafted tokens without changing the model's distribution."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def accept_or_resample(
    drafted: Int[Tensor, "rows"],
    draft_logits: Float[Tensor, "rows vocab"],
    logits: Float[Tensor, "rows vocab"],
) -> tuple[Int[Tensor, "rows"], Bool[Tensor, "rows"]]:
    """Return a sample of softmax(logits) for each row, and whether it is the drafted token, accepted.

    Let q = softmax(draft_logits), p = softmax(logits), and x the drafted token, a sample of q. x is accepted with
    probability min(1, p(x) / q(x)); otherwise a token is drawn from max(p - q, 0) / sum(max(p - q, 0)). The returned
    token has distribution p for any q.

    Args:
        drafted: Samples of softmax(draft_logits).
        draft_logits: -inf where a token cannot be drafted.
        logits: -inf where a token cannot be generated.
    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1.
    """
    p, q = logits.float().softmax(dim=-1), draft_logits.float().softmax(dim=-1)
    index = drafted[:, None]
    accepted = torch.rand_like(p[:, 0]) * q.gather(1, index)[:, 0] < p.gather(1, index)[:, 0]
    residual = (p - q).clamp(min=0.0)
    # a residual of 0 means p = q up to rounding; a token is then rejected only because the ratio was rounded
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, p)
    drawn = torch.multinomial(residual, num_samples=1)[:, 0]
    return torch.where(accepted, drafted, drawn), accepted
