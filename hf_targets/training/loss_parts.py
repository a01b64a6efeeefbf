"""What a Trainer logs beside the loss: the parts that it is made of."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer


class LogsLossParts(Trainer):
    """Trainer that logs each part of the loss as `loss_NAME`, averaged over steps and processes as the loss is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._parts: defaultdict[str, Tensor | float] = defaultdict(float)
        self._parts_since = 0
        super().__init__(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does; what an earlier training did not log is none of this one's."""
        self._parts.clear()
        return super().train(*args, **kwargs)

    def _keep_parts(self, parts: Mapping[str, Tensor], scale: float = 1.0) -> None:
        """Keep the parts of a batch's loss for the log.

        Args:
            parts: Scalars, each its batch's share of the step's.
            scale: A factor of all.
        """
        if not self._parts:
            self._parts_since = self.state.global_step
        for name, part in parts.items():
            self._parts[name] += part.detach() * scale

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the parts of the loss beside the loss."""
        if "loss" in logs and self._parts:
            steps = max(1, self.state.global_step - self._parts_since)
            for name, total in self._parts.items():
                gathered = self.accelerator.gather(torch.as_tensor(total, device=self.args.device).reshape(1))
                logs[f"loss_{name}"] = torch.as_tensor(gathered).mean().item() / steps
            self._parts.clear()
        super().log(logs, start_time)
