"""What phrases to encode must be; values are looked at on a CPU alone: elsewhere that would wait."""

import torch
from torch import Tensor

from hf_targets.backbones.inputs import check_range


def check_windows(windows: Tensor, phrase_windows: Tensor) -> None:
    """Check that each phrase is the first tokens of a window; shapes are those of `PhraseEncoder`.

    Raises:
        ValueError: If one is not.
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
