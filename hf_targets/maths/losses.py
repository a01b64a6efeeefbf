"""Cross-entropy from hidden states without the logits of all rows at once, and its divisor; perplexity."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hf_targets.maths.torch_modes import without_autocast

IGNORED = -100
"""The label of a position that is not a target, as everywhere in Transformers."""

_LARGEST_EXPONENT = 700.0
"""exp of a larger number may overflow a Python float."""

LOGITS_PER_CHUNK = 2**25
"""Number of logits held at a time: 128 MB in float32, large enough for matrix products to run at full speed on a CPU.

An accelerator holds 8 times as many: each chunk adds a whole gradient to that of the output matrix.
"""

LOGITS_IN_CACHE = 2**21
"""Number of logits in float32 whose softmax a CPU computes at a time: 8 MB, which stay in its cache between passes."""


def product_dtype(hidden: Tensor) -> torch.dtype:
    """Return the type in which to multiply by hidden states: that of autocast where it is on, else their own."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def rows_per_chunk(width: int, device: torch.device) -> int:
    """Return for how many rows logits of that width are held at a time."""
    return max(1, LOGITS_PER_CHUNK * (1 if device.type == "cpu" else 8) // width)


def soft_capped(logits: Float[Tensor, "*rows"], cap: float | None) -> Float[Tensor, "*rows"]:
    """Return cap * tanh(logits / cap), which keeps their order within (-cap, cap); without a cap the logits.

    Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2.
    """
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _chunk_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    label_smoothing: float,
    dtype: torch.dtype,
    cap: float | None,
) -> Tensor:
    logits = F.linear(hidden.to(dtype), weight.to(dtype)).to(torch.promote_types(dtype, torch.float32))
    logits = soft_capped(logits if bias is None else logits + bias, cap)
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, label_smoothing=label_smoothing, reduction="none")


def token_cross_entropy(
    hidden: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, "rows"],
    bias: Float[Tensor, "vocab"] | None = None,
    *,
    label_smoothing: float = 0.0,
    cap: float | None = None,
) -> Float[Tensor, "rows"]:
    """Return -log softmax(hidden @ weight.T + bias)[target] of every row, 0 where the target is -100.

    Logits are held for `rows_per_chunk` rows at a time. The backward pass recomputes them, which costs one more matrix
    product than keeping them. In full precision this calls `linear_cross_entropy` of torch >= 2.13. Checkpointed chunks
    are used in half precision (that function would round the losses to it), with label smoothing (that function would
    not chunk), with a cap, in compiled code, and with older releases of torch.

    Args:
        label_smoothing: Share of the uniform distribution in the target, in [0, 1).
        cap: Of the logits, as `soft_capped` bounds them; None: none.
    Returns: Losses in float32 (float64 for float64 input).
    Related: `weighted_cross_entropy` gives a weighted sum of them, whose backward pass costs one product less.
    """
    size = rows_per_chunk(len(weight), weight.device)
    dtype = product_dtype(hidden)
    fused = hasattr(torch.nn, "LinearCrossEntropyOptions") and dtype in (torch.float32, torch.float64)
    if fused and not label_smoothing and cap is None and not torch.compiler.is_compiling():
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=size)
        return F.linear_cross_entropy(
            hidden, weight, targets, linear_bias=bias, reduction="none", ignore_index=IGNORED, options=options
        )
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))  # so that chunks sum their gradients in it
    losses = []
    for rows, labels in zip(hidden.split(size), targets.split(size), strict=True):
        arguments = (rows, weight, labels, bias, label_smoothing, dtype, cap)
        losses.append(checkpoint(_chunk_loss, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(losses)


def weighted_cross_entropy(
    hidden: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, "rows"],
    row_weights: Float[Tensor, "rows"],
    bias: Float[Tensor, "vocab"] | None = None,
    *,
    label_smoothing: float = 0.0,
    cap: float | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows"]]:
    """Return sum_i w_i * L_i, where L is `token_cross_entropy`, and the L_i of all rows without a gradient.

    The weights of the rows are known, so the gradients are too, up to one factor: they are computed chunk by chunk in
    the forward pass, while the logits are there. This takes three matrix products instead of four. Logits are held for
    `rows_per_chunk` rows at a time. On a GPU the vocabulary is padded to a multiple of 8, as its products ask for.

    Products are in the type of autocast, or else of `hidden`; the softmax and the gradient of `weight` are summed in
    float32, and float16 neither overflows nor vanishes. Only needed gradients are computed; the losses are the same,
    bit for bit, whichever these are. Compiled code calls `token_cross_entropy`.

    Args:
        row_weights: Constants w; they get no gradient.
        label_smoothing: Share of the uniform distribution in the target, in [0, 1].
        cap: Of the logits, as `soft_capped` bounds them; None: none.
    Returns: Both in float32 (float64 for float64 input).
    Raises:
        ValueError: If `label_smoothing` is out of its range.
        RuntimeError: In a backward pass with `create_graph=True`: the sum cannot be differentiated twice.
    Source: Hsu et al. 2024, "Liger Kernel", section 3.2, FusedLinearCrossEntropy.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    row_weights = row_weights.detach()
    if torch.compiler.is_compiling():
        rows = token_cross_entropy(hidden, weight, targets, bias, label_smoothing=label_smoothing, cap=cap)
        return (rows * row_weights.to(rows.dtype).masked_fill(targets == IGNORED, 0.0)).sum(), rows.detach()
    dtype = product_dtype(hidden)
    if not torch.is_grad_enabled():
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    with without_autocast(hidden.device):
        return _WeightedCrossEntropy.apply(hidden, weight, bias, targets, row_weights, label_smoothing, dtype, cap)


class _WeightedCrossEntropy(torch.autograd.Function):
    """The function, with the gradients of its first three arguments."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        row_weights: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum and the losses, and save the gradients of the sum; products are in `dtype`."""
        full = torch.promote_types(dtype, torch.float32)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        factors = row_weights.to(full).masked_fill(targets == IGNORED, 0.0)
        is_narrow = dtype == torch.float16  # whose range the sums over rows, and small weights, would leave
        wide = full if is_narrow else hidden.dtype
        of_hidden = torch.empty_like(hidden, dtype=wide) if ctx.needs_input_grad[0] else None
        of_bias = torch.zeros_like(bias, dtype=full) if bias is not None and ctx.needs_input_grad[2] else None
        matrix, results, wanted = _aligned(weight.to(dtype)), [], any(ctx.needs_input_grad)
        of_weight = torch.zeros_like(matrix, dtype=full) if ctx.needs_input_grad[1] else None
        size = rows_per_chunk(len(weight), weight.device)
        unit = _unit_of_sums(hidden, factors, min(size, len(hidden))) if is_narrow else None
        for start in range(0, len(hidden), size):
            chunk = slice(start, start + size)
            states, scale = hidden[chunk].to(dtype), factors[chunk, None]
            logits = states @ matrix.T
            real = logits[:, : len(weight)]  # those of the padding are 0, and so are their gradients
            results.append(_losses(real, bias, targets[chunk], scale, label_smoothing, of_bias, wanted, cap))
            if of_hidden is not None:
                of_hidden[chunk] = (logits @ matrix) * scale
            if of_weight is not None:
                scaled = (hidden[chunk] * (scale if unit is None else scale / unit)).to(dtype)
                if dtype == full:
                    of_weight.addmm_(logits.T, scaled)
                else:
                    _add_product(of_weight, logits.T, scaled)
        of_weight = None if of_weight is None else of_weight[: len(weight)]
        if unit is not None and of_weight is not None:
            of_weight *= unit
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        rows = torch.cat(results) if results else factors
        ctx.mark_non_differentiable(rows)
        return (rows * factors).sum(), rows

    @staticmethod
    def backward(ctx: Any, factor: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the saved gradients, times that of the sum."""
        if torch.is_grad_enabled():  # the saved gradients have no derivatives
            raise RuntimeError("the loss of this model cannot be differentiated twice; leave out create_graph=True")
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        gradients = [None if saved is None else (saved * factor).to(dtype) for saved, dtype in pairs]
        return *gradients, None, None, None, None, None


def _aligned(matrix: Tensor) -> Tensor:
    """Return a matrix with rows of 0 added on a GPU, whose products in half precision are slow at an odd number."""
    return F.pad(matrix, (0, 0, 0, -len(matrix) % 8)) if matrix.device.type == "cuda" else matrix


def _unit_of_sums(hidden: Tensor, factors: Tensor, num_rows: int) -> Tensor:
    """Return the power of two in whose multiples the sums of `num_rows` weighted rows stay within 2^14."""
    if not num_rows:
        return factors.new_ones(())
    largest = torch.linalg.vector_norm(hidden, torch.inf).to(factors.dtype) * factors.abs().amax() * num_rows
    return torch.where(largest == 0, 1.0, torch.exp2((largest / 2**14).log2().ceil()))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right in half precision to a total in float32, by parts of its rows, as the product is a copy."""
    size = max(1, LOGITS_IN_CACHE // total.shape[1]) if total.device.type == "cpu" else len(total)
    for part, rows in zip(total.split(size), left.split(size), strict=True):
        part += rows @ right


def _losses(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    scale: Tensor,
    label_smoothing: float,
    of_bias: Tensor | None,
    wanted: bool,
    cap: float | None,
) -> Tensor:
    """Return the losses of rows; if wanted, put the gradients of these losses by the logits into `logits`.

    Args:
        logits: (rows, vocab), without bias and cap.
        scale: (rows, 1), by which `of_bias` weights the rows. It is 0 for a target of -100, and `logits` then hold any
            finite numbers.
        of_bias: (vocab,), to which the gradient of the weighted losses by the bias is added.
    """
    vocab_size, kept, results = logits.shape[1], 1.0 - label_smoothing, []
    size = max(1, LOGITS_IN_CACHE // vocab_size) if logits.device.type == "cpu" else len(logits)
    for block, labels, scales in zip(logits.split(size), targets.split(size), scale.split(size), strict=True):
        index = labels.masked_fill(labels == IGNORED, 0)[:, None]  # an id below 0 is an error of gather
        given = block if bias is None and cap is None else block.to(scale.dtype)
        given = soft_capped(given if bias is None else given + bias, cap)
        log_p = given.log_softmax(dim=-1, dtype=scale.dtype)
        loss = -kept * log_p.gather(1, index)[:, 0]
        if label_smoothing:
            loss -= label_smoothing * log_p.mean(dim=-1)
        results.append(loss.masked_fill(labels == IGNORED, 0.0))
        if not wanted:
            continue
        gradient = log_p.exp_()
        if label_smoothing:
            gradient -= label_smoothing / vocab_size
        gradient.scatter_add_(1, index, gradient.new_full(index.shape, -kept))
        if cap is not None:
            gradient *= 1 - (given / cap) ** 2  # the derivative of the cap
        if of_bias is not None:
            of_bias.addmv_(gradient.T, scales[:, 0])
        block.copy_(gradient)
    return torch.cat(results)


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


def bag_of_words_losses(
    logits: Float[Tensor, "batch time vocab"], targets: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch"]:
    """Return each row's -sum over the distinct words b of its target of log sigmoid(sum_t s_t[b]), 0 without targets.

    s_t are the logits of position t; positions without a target are left out of the sum. As in the paper, words that
    are not in the target do not count: the loss falls if the logits of all words rise alike.

    Source: Ma et al. 2018, "Bag-of-Words as Target for Neural Machine Translation", sections 2.3 and 2.4. Its published
        program labels all words of the vocabulary as present, as it compares counts with >= 0.
    """
    is_target = targets != IGNORED
    full = torch.promote_types(logits.dtype, torch.float32)
    scores = (logits.to(full) * is_target[..., None]).sum(dim=1)
    words = targets.masked_fill(~is_target, 0)
    counts = torch.zeros_like(scores).scatter_add_(1, words, is_target.to(full))
    return -F.logsigmoid(scores).masked_fill(counts == 0, 0.0).sum(dim=1)
