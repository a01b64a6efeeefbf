"""Cross-entropy from hidden states, never holding the logits of all rows; what it is divided by, and its perplexity."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

IGNORED = -100
"""The label of a position that is not a target, as everywhere in Transformers."""

_LARGEST_EXPONENT = 700.0
"""Above it a float overflows."""

LOGITS_PER_CHUNK = 2**25
"""Logits held at a time: 128 MB in float32, large enough for matrix products to run at full speed."""


def _chunk_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, label_smoothing: float, dtype: torch.dtype
) -> Tensor:
    logits = F.linear(hidden.to(dtype), weight.to(dtype)).to(torch.promote_types(dtype, torch.float32))
    logits = logits if bias is None else logits + bias
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, label_smoothing=label_smoothing, reduction="none")


def token_cross_entropy(
    hidden: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, "rows"],
    bias: Float[Tensor, "vocab"] | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "rows"]:
    """Return -log softmax(hidden @ weight.T + bias)[target] of every row, 0 where the target is -100.

    No more than `LOGITS_PER_CHUNK` logits are held at a time, in the backward pass either: it computes them anew, which
    is one matrix product more than keeping them. Full precision takes `linear_cross_entropy` of torch >= 2.13; half
    precision (which that function would round the losses to), label smoothing (which it does not chunk), compiled
    code and older releases take checkpointed chunks.

    Args:
        label_smoothing: Share of the target taken from the uniform distribution, in [0, 1).
    Returns: Losses in float32 (float64 for float64 input).
    Related: one call for the rows of several heads holds one gradient of `weight`, not one a head.
    """
    size = max(1, LOGITS_PER_CHUNK // weight.shape[0])
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    fused = hasattr(torch.nn, "LinearCrossEntropyOptions") and dtype in (torch.float32, torch.float64)
    if fused and not label_smoothing and not torch.compiler.is_compiling():
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=size)
        return F.linear_cross_entropy(
            hidden, weight, targets, linear_bias=bias, reduction="none", ignore_index=IGNORED, options=options
        )
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))  # so that chunks add up their gradients there
    losses = []
    for rows, labels in zip(hidden.split(size), targets.split(size), strict=True):
        arguments = (rows, weight, labels, bias, label_smoothing, dtype)
        losses.append(checkpoint(_chunk_loss, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(losses)


def perplexity(mean_nll: float) -> float:
    """Return exp(mean negative log-likelihood), inf where that overflows: a text may be as good as impossible."""
    return math.exp(mean_nll) if mean_nll < _LARGEST_EXPONENT else math.inf


def target_count(targets: Int[Tensor, "batch time"], num_items_in_batch: Tensor | int | None) -> Tensor | int:
    """Return what a loss is divided by: the Trainer's count where there is one, else the labels other than -100.

    It is at least 1, so that a step without any target has loss 0 and gradients of 0: the Trainer counts 0 there.
    A count that is a tensor is moved to the device of the targets.
    """
    if num_items_in_batch is None:
        return (targets != IGNORED).sum().clamp(min=1)
    if isinstance(num_items_in_batch, Tensor):
        return num_items_in_batch.to(targets.device).clamp(min=1)
    return max(1, num_items_in_batch)


def ngram_loss(
    next_token: Float[Tensor, ""], future: Sequence[Float[Tensor, ""]], loss_weight: float
) -> Float[Tensor, ""]:
    """Return L_0 / 2 + alpha / (2N - 2) * (L_1 + ... + L_{N-1}).

    Args:
        next_token: L_0, the loss of the ordinary head.
        future: L_1 to L_{N-1}, one a head, so N is one more than there are.
        loss_weight: Alpha.
    Source: Heo et al., equation (6).
    """
    return next_token / 2 + loss_weight / (2 * len(future)) * torch.stack(list(future)).sum()
