"""A model whose loss is that of smoothed labels, as Trainer computes it from the logits."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class SmoothedLoss(nn.Module):
    """A model around a model that returns logits: its output has the loss of a function of them and of the labels.

    It is in the mode of the model.

    Args:
        loss: Of the model's output and the labels.
        reads_labels: Whether the model gets the labels, too, as one of pairs that makes its decoder's input of them.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Tensor], Tensor], *, reads_labels: bool = False) -> None:
        super().__init__()
        self.model, self.loss, self.reads_labels, self.training = model, loss, reads_labels, model.training

    def forward(self, labels: Tensor, **inputs: Any) -> dict[str, Tensor]:
        """Return the loss of a batch."""
        read = {**inputs, "labels": labels} if self.reads_labels else inputs
        return {"loss": self.loss(self.model(**read), labels)}
