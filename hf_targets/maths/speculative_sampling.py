"""When a drafted token may stay: speculative sampling, which leaves the model's distribution as it is."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def accept_or_resample(
    drafted: Int[Tensor, "rows"],
    draft_logits: Float[Tensor, "rows vocab"],
    logits: Float[Tensor, "rows vocab"],
) -> tuple[Int[Tensor, "rows"], Bool[Tensor, "rows"]]:
    """Return a sample of softmax(logits) for each row, and whether it is the drafted token that was accepted.

    With q = softmax(draft_logits), of which the draft x is a sample, and p = softmax(logits): x stays with probability
    min(1, p(x) / q(x)); otherwise another token is drawn from max(p - q, 0) / sum(max(p - q, 0)). The token returned
    then has distribution p, whatever q is.

    Args:
        drafted: Samples of softmax(draft_logits).
        draft_logits: -inf where a token cannot be drafted.
        logits: -inf where a token cannot be generated.
    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1.
    """
    p, q = logits.float().softmax(dim=-1), draft_logits.float().softmax(dim=-1)
    at = drafted[:, None]
    accepted = torch.rand_like(p[:, 0]) * q.gather(1, at)[:, 0] < p.gather(1, at)[:, 0]
    residual = (p - q).clamp(min=0.0)
    # p = q up to rounding: what is left is noise, and only a rounded ratio can have led here
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, p)
    drawn = torch.multinomial(residual, num_samples=1)[:, 0]
    return torch.where(accepted, drafted, drawn), accepted
