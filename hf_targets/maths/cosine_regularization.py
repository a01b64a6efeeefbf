"""How alike the directions of embeddings are, as a loss: the mean cosine of all pairs, in time linear in their number.

Source: Gao et al. 2019, "Representation Degeneration Problem in Training Natural Language Generation Models".
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAST_NORM = 1e-12
"""A shorter row has no direction, as in `torch.nn.functional.normalize`."""


def cosine_regularization(weight: Float[Tensor, "vocab dim"], ignore_index: int | None = None) -> Float[Tensor, ""]:
    """Return 1 / V^2 times the sum over i != j of cos(w_i, w_j), in [-1 / V, 1 - 1 / V].

    With u_i = w_i / |w_i| the sum is |sum_i u_i|^2 - V. Forward and backward pass take O(V d), and hold one temporary
    tensor of the size of the weight.

    Args:
        weight: Embedding rows, such as an output matrix. A row of zeros, or of a norm below 1e-12, is orthogonal to all
            others, and gets no gradient. Without two rows the value is 0.
        ignore_index: A row that does not count, such as that of padding; V is then one less.
    Returns: In float32 (float64 for float64 input), whatever the type of the weight. It can be differentiated once.
    Raises:
        ValueError: If a weight is NaN or infinite, or too large for its square, or `ignore_index` is not in [0, V).
    Source: Gao et al. 2019, equation (6) without gamma, and proposition 1.
    Related: `pairwise_cosine_penalty` is the same without a look at the value, for training.
    """
    value = pairwise_cosine_penalty(weight, ignore_index)
    if not torch.isfinite(value):
        full = weight.detach().to(value.dtype)
        rows = (~torch.isfinite(torch.linalg.vector_norm(full, dim=1))).nonzero().flatten().tolist()
        raise ValueError(f"weights and their norms must be finite, and those of {len(rows)} rows are not: {rows[:5]}")
    return value


def pairwise_cosine_penalty(weight: Float[Tensor, "vocab dim"], ignore_index: int | None = None) -> Float[Tensor, ""]:
    """Return `cosine_regularization`, or NaN if a weight is no number: a check of values would wait for the device."""
    if weight.dim() != 2:
        raise ValueError(f"the weight must be a matrix (vocab, dim), got the shape {tuple(weight.shape)}")
    if ignore_index is not None and not 0 <= ignore_index < len(weight):
        raise ValueError(f"ignore_index must be in [0, {len(weight)}), got {ignore_index}")
    with torch.autocast(weight.device.type, enabled=False):  # which would round the sum over all rows
        return _PairwiseCosine.apply(weight, ignore_index)  # pyright: ignore[reportReturnType]


def check_cosine_weight(weight: float) -> None:
    """Raise a ValueError if the factor gamma of the regularisation is negative, NaN or infinite."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"cosine_weight (gamma) must be 0 or more, got {weight}; 0 switches the regularisation off")


class _PairwiseCosine(torch.autograd.Function):
    """The penalty, with a backward pass of its own: two products of the matrix with a vector, and no other matrix.

    With s = sum_i u_i the gradient of |s|^2 - V at row i is 2 (s - (s . u_i) u_i) / |w_i|.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ignore_index: int | None) -> Tensor:
        """Compute the penalty."""
        rows = weight.to(torch.promote_types(weight.dtype, torch.float32))
        norms = torch.linalg.vector_norm(rows, dim=1)
        counted = norms > _LEAST_NORM
        num_rows = len(rows)
        if ignore_index is not None:
            counted[ignore_index] = False
            num_rows -= 1
        inverses = torch.where(counted, norms, torch.inf).reciprocal()  # 0 for rows that do not count
        inverses = torch.where(torch.isfinite(norms), inverses, torch.nan)
        total = inverses @ rows
        ctx.save_for_backward(weight, inverses, total)
        ctx.num_pairs = max(num_rows, 1) ** 2
        ctx.is_neutral = num_rows < 2
        return (total @ total - counted.sum()) / ctx.num_pairs * (0.0 if ctx.is_neutral else 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        """Compute its gradient."""
        weight, inverses, total = ctx.saved_tensors
        if ctx.is_neutral:
            return torch.zeros_like(weight), None
        scale = gradients[0] * (2 / ctx.num_pairs)
        rows = weight.to(total.dtype)
        along = (rows @ total) * inverses * scale * inverses * inverses  # in this order nothing overflows
        gradient = torch.outer(inverses * scale, total).addcmul_(rows, along[:, None], value=-1)
        return gradient.to(weight.dtype), None
