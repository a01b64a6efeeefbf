"""Cross-entropy from hidden states without holding the logits of all rows at once, its divisor, and perplexity."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

IGNORED = -100
"""The label of a position that is not a target, as everywhere in Transformers."""

_LARGEST_EXPONENT = 700.0
"""exp of a larger number may overflow a Python float."""

LOGITS_PER_CHUNK = 2**25
"""Number of logits held at a time: 128 MB in float32, large enough for matrix products to run at full speed."""


def product_dtype(hidden: Tensor) -> torch.dtype:
    """Return the type in which to multiply by hidden states: that of autocast where it is on, else their own."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def whole_cross_entropy(
    hidden: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, "rows"],
    bias: Float[Tensor, "vocab"] | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "rows"]:
    """Return what `token_cross_entropy` does, with the logits of all rows in memory; for any transform of torch.func.

    Args:
        label_smoothing: Share of the uniform distribution in the target, in [0, 1).
    """
    return _chunk_loss(hidden, weight, targets, bias, label_smoothing, product_dtype(hidden))


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

    At most `LOGITS_PER_CHUNK` logits are held at a time. The backward pass recomputes them, which costs one more matrix
    product than keeping them. In full precision this calls `linear_cross_entropy` of torch >= 2.13. Checkpointed chunks
    are used in half precision (that function would round the losses to it), with label smoothing (that function would
    not chunk), in compiled code, and with older releases of torch.

    Args:
        label_smoothing: Share of the uniform distribution in the target, in [0, 1).
    Returns: Losses in float32 (float64 for float64 input).
    Related: `weighted_cross_entropy` gives a weighted sum of them, whose backward pass costs one product less.
    """
    size = max(1, LOGITS_PER_CHUNK // weight.shape[0])
    dtype = product_dtype(hidden)
    fused = hasattr(torch.nn, "LinearCrossEntropyOptions") and dtype in (torch.float32, torch.float64)
    if fused and not label_smoothing and not torch.compiler.is_compiling():
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=size)
        return F.linear_cross_entropy(
            hidden, weight, targets, linear_bias=bias, reduction="none", ignore_index=IGNORED, options=options
        )
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))  # so that chunks sum their gradients in it
    losses = []
    for rows, labels in zip(hidden.split(size), targets.split(size), strict=True):
        arguments = (rows, weight, labels, bias, label_smoothing, dtype)
        losses.append(checkpoint(_chunk_loss, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(losses)


def perplexity(mean_nll: float) -> float:
    """Return exp(mean negative log-likelihood), or inf if that overflows, as for a very improbable text; NaN of NaN."""
    return math.inf if mean_nll >= _LARGEST_EXPONENT else math.exp(mean_nll)


def target_count(targets: Int[Tensor, "batch time"], num_items_in_batch: Tensor | int | None) -> Tensor | int:
    """Return the divisor of a loss: the Trainer's count if given, else the number of targets that are not -100.

    It is at least 1: for a step without any target the Trainer's count is 0, and loss and gradients must be 0. A count
    that is a tensor is moved to the device of the targets.
    """
    if num_items_in_batch is None:
        return (targets != IGNORED).sum().clamp(min=1)
    if isinstance(num_items_in_batch, Tensor):
        return num_items_in_batch.to(targets.device).clamp(min=1)
    return max(1, num_items_in_batch)


def ngram_weights(num_heads: int, loss_weight: float) -> list[float]:
    """Return the weights of L_0 to L_{N-1} in the loss L_0 / 2 + alpha / (2N - 2) * (L_1 + ... + L_{N-1}).

    Args:
        num_heads: N - 1, at least one.
        loss_weight: Alpha.
    Source: Heo et al., equation (6).
    """
    return [0.5, *[loss_weight / (2 * num_heads)] * num_heads]
