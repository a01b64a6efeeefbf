"""The epoch of a training, for batches whose order depends on it."""

from typing import Any, Protocol

from transformers import TrainerCallback, TrainerState


class HasEpochs(Protocol):
    """Something, such as a sampler, whose order depends on the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch, from 0 on."""


class EpochCallback(TrainerCallback):
    """Tells batches their epoch, also in the epoch that a run of several processes resumes: accelerate does not."""

    def __init__(self, sampler: HasEpochs) -> None:
        self.sampler = sampler
        self._epoch: int | None = None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Begin to count."""
        self._epoch = None

    def on_epoch_begin(self, args: Any, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Choose the order of the epoch that begins, or goes on; `state.epoch` does not count those of a stream."""
        self._epoch = int((state.epoch or 0.0) + 1e-6) if self._epoch is None else self._epoch + 1
        self.sampler.set_epoch(self._epoch)
