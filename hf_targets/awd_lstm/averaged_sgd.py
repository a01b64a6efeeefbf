"""Non-monotonically triggered averaged SGD: when the mean of the weights begins, and when finetuning ends."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState

from hf_targets.training.averaging import AveragingCallback


class NonMonotoneTrigger(TrainerCallback):
    """Begins the mean of the weights once evaluations no longer get better; if it began with training, stops training.

    Args:
        averaging: Keeps the mean.
        interval: n of `no_longer_better`.
    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", algorithm 1; the published program.
    """

    def __init__(self, averaging: AveragingCallback, interval: int) -> None:
        self.averaging, self.interval = averaging, interval
        self._is_training = False

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Look at the evaluations from now on."""
        self._is_training = True

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Leave later evaluations alone."""
        self._is_training = False

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: nn.Module, **kwargs: Any
    ) -> None:
        """Begin the mean, or stop, if this evaluation says so."""
        if not self._is_training or not no_longer_better(evaluated(state), self.interval):
            return
        if self.averaging.from_start:
            control.should_training_stop = True
        else:
            self.averaging.begin(model)


def evaluated(state: TrainerState) -> list[float]:
    """Return the losses of a training's evaluations, without one before its first step."""
    return [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry and entry["step"]]


def no_longer_better(losses: Sequence[float], interval: int) -> bool:
    """Return whether the last loss is above the best of the losses before the `interval` most recent other ones.

    >>> no_longer_better([5.0, 4.0, 4.1], 1)
    False
    >>> no_longer_better([5.0, 4.0, 4.1, 4.05], 1)
    True
    """
    earlier = losses[:-1][: -interval or None]
    return bool(earlier) and losses[-1] > min(earlier)
