"""The time of the passes of Transformers' own loop."""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria


class Stopwatch(StoppingCriteria):
    """A criterion that stops no row, and reads the clock after each pass.

    Attributes:
        passes: How many there were, that of the prompt included.
    """

    def __init__(self) -> None:
        self.passes, self._first, self._last = 0, 0.0, 0.0

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # pyright: ignore
        """Read the clock, and return that no row is to stop."""
        self._last = perf_counter()
        self._first = self._first or self._last
        self.passes += 1
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    @property
    def seconds_of_a_pass(self) -> float:
        """Seconds of a pass after the first, the mean; there must be one."""
        return (self._last - self._first) / (self.passes - 1)
