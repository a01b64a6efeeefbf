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

    def on_epoch_begin(self, args: Any, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Choose the order of the epoch that begins, or goes on."""
        self.sampler.set_epoch(int((state.epoch or 0.0) + 1e-6))
