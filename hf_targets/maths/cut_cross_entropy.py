"""A kernel for the cross-entropy of a large vocabulary on an NVIDIA GPU, used where its package is installed."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., Tensor]
"""Takes hidden states, the output matrix, targets, and `bias` and `reduction`; never holds the logits."""


@cache
def _installed() -> bool:
    return find_spec("cut_cross_entropy") is not None


def kernel_for(device: torch.device, dtype: torch.dtype, label_smoothing: float) -> Kernel | None:
    """Return `linear_cross_entropy` of the package cut-cross-entropy if it is installed and can serve, else None.

    It serves products in half precision on CUDA, without label smoothing.

    Args:
        dtype: Of the products.
    Source: Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models".
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or label_smoothing:
        return None
    if not _installed():
        return None
    return import_module("cut_cross_entropy").linear_cross_entropy


def weighted_by_kernel(
    kernel: Kernel, hidden: Tensor, weight: Tensor, targets: Tensor, row_weights: Tensor, bias: Any, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what `weighted_cross_entropy` returns, by a kernel.

    Args:
        targets: -100 where there is none, which the kernel ignores.
        dtype: Of the products.
    """
    bias = None if bias is None else bias.to(dtype)
    rows = kernel(hidden.to(dtype), weight.to(dtype), targets, bias=bias, reduction="none").float()
    return (rows * row_weights).sum(), rows.detach()
