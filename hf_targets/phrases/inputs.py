"""Checks of the phrases to encode. Values are checked only on a CPU; on other devices a check would have to wait."""

import torch
from torch import Tensor

from hf_targets.backbones.inputs import check_range


def check_windows(windows: Tensor, phrase_windows: Tensor) -> None:
    """Check that each phrase is a prefix of a window; `PhraseEncoder.forward` gives the shapes.

    Raises:
        ValueError: If a tensor has a wrong type or shape, or a phrase is not a prefix of a window.
    """
    for name, tensor, right in (
        ("windows must be (windows, length)", windows, windows.dim() == 2),
        ("phrase_windows must be (phrases, 2)", phrase_windows, phrase_windows.shape[1:] == (2,)),
    ):
        if not right or tensor.dtype not in (torch.int64, torch.int32):
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise ValueError(f"{name}, integers, got {got}; PhraseCollator makes such batches")
    check_range(phrase_windows[:, 0], len(windows), "phrase_windows must name windows")
    check_range(phrase_windows[:, 1], windows.shape[1] + 1, "phrase_windows must have lengths", start=1)
