"""A model whose loss is that of smoothed labels, as Trainer computes it from the logits."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class SmoothedLoss(nn.Module):
    """A model around a model that returns logits: its output has the loss of a function of them and of the labels.

    Args:
        model: Does not get the labels.
        loss: Of the model's output and the labels.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.loss, self.training = model, loss, model.training

    def forward(self, labels: Tensor, **inputs: Any) -> dict[str, Tensor]:
        """Return the loss of a batch."""
        return {"loss": self.loss(self.model(**inputs), labels)}
