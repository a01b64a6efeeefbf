"""Trainers of recipes: the training of a CrammedBERT as published, and a validation by BLEU."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hf_targets import GaussianDiffusionTrainer, MultiTokenMaskedTrainer

RAMP = 0.6
"""Share of the updates after which batches have all their rows."""


class CrammingTrainer(MultiTokenMaskedTrainer):
    """A trainer whose rate rises from a quarter until three quarters of the updates, and then falls to 0.

    A batch of an early update has fewer rows than its settings say, in proportion to the updates made; those that it
    leaves out are not read in this epoch.

    Source: JonasGeiping/cramming, train/bert-o4.yaml: scheduler budget-triangle2, batch_size_ramp 0.6.
    Departs: rate and batches follow the updates; the published program's follow the time of a training that has a day,
        so that it makes more of the small updates.
    """

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """Return the schedule of the rate; `lr_scheduler_type` has no effect."""

        def factor(step: int) -> float:
            return min(0.25 + step / num_training_steps, 4 - 4 * step / num_training_steps)

        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)  # pyright: ignore[reportArgumentType]
        return self.lr_scheduler  # pyright: ignore[reportReturnType]

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any, **kwargs: Any) -> Any:
        """Collect the batches of an update, with the rows that it has by now."""
        share = min((self.state.global_step + 1) / (RAMP * self.state.max_steps), 1.0)
        cut = ({key: part[: math.ceil(share * len(part))] for key, part in batch.items()} for batch in epoch_iterator)
        return super().get_batch_samples(cut, *args, **kwargs)


class BleuTrainer(GaussianDiffusionTrainer):
    """A Trainer whose evaluations have scores of texts, so that `metric_for_best_model: bleu` chooses by them.

    `score` writes the validation text with the model, as the published programs do, and returns its scores by name.
    """

    def __init__(self, *args: Any, score: Callable[[], dict[str, float]], **kwargs: Any) -> None:
        self._score = score
        super().__init__(*args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Evaluate, and score what the model, with its averaged weights, writes."""
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        with self.averaged_weights():
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in self._score().items()})
        return output
