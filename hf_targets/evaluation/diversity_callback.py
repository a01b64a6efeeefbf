"""Gradient diversity in the log of a training, which does not notice it."""

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_targets.evaluation.gradient_diversity import Batch, NoDiversityError, gradient_diversity, rows_of

logger = logging.getLogger(__name__)


class SmoothedLoss(nn.Module):
    """A model around a model that returns logits: its output has the loss of smoothed labels, as Trainer computes it.

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


class GradientDiversityCallback(TrainerCallback):
    """Logs the `gradient_diversity` of the rows of a step, each so many steps, before its update.

    It is of the rows of the first process, all batches of an accumulation together, with dropout, under the training's
    autocast, and with smoothed labels where Trainer smooths them. The training is the same bit for bit as without it.
    A step whose gradients have no diversity, as without a target, is passed over, with one warning.

    Args:
        trainer: The trainer that this is added to.
        every: Steps from one measurement to the next; the first step is measured.
        num_rows: Measure so many rows of a step at most; None: all.
    """

    def __init__(self, trainer: Trainer, every: int, *, num_rows: int | None = None) -> None:
        self._trainer, self._every, self._num_rows = trainer, every, num_rows
        self._batches: list[Batch] | None = None
        self._hook: Any = None
        self._smoother: _KeepsLabels | None = None
        self._is_over, self._has_warned = False, False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to keep what the model reads."""
        self._let_go()  # of a step that was broken off, as where Trainer finds a batch size
        if not self._is_over and state.global_step % self._every == 0 and state.is_world_process_zero:
            self._batches = []
            model = cast(nn.Module, self._trainer.model)
            self._hook = model.register_forward_pre_hook(self._keep, with_kwargs=True)
            if self._trainer.label_smoother is not None:
                self._smoother = _KeepsLabels(self._trainer.label_smoother)
                self._trainer.label_smoother = cast(Any, self._smoother)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure on what was kept, and log."""
        batches, smoother = self._batches, self._smoother
        self._let_go()
        if batches is None:
            return
        model = cast(nn.Module, self._trainer.model)
        if smoother is not None and len(smoother.labels) == len(batches):
            reads_labels = all("labels" in batch for batch in batches)
            batches = [{**batch, "labels": kept} for batch, kept in zip(batches, smoother.labels, strict=True)]
            model = SmoothedLoss(model, partial(smoother.smooth, **smoother.options), reads_labels=reads_labels)
        if not batches or any("labels" not in batch for batch in batches):
            logger.warning(
                "No gradient diversity is logged: the model reads no labels, as compute_loss_func makes the loss."
            )
            self._is_over = True
            return
        rows = [row for batch in batches for row in rows_of(batch)][: self._num_rows]
        if len(rows) < 2:
            logger.warning("No gradient diversity is logged: it compares rows of a step, and a step has one.")
            self._is_over = True
            return
        try:
            with self._trainer.compute_loss_context_manager():
                diversity = gradient_diversity(model, rows, dropout=True)
        except NoDiversityError as error:
            if not self._has_warned:
                logger.warning("No gradient diversity is logged for step %d: %s.", state.global_step, error)
            self._has_warned = True
            return
        self._trainer.log({"gradient_diversity": diversity})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the model."""
        self._let_go()

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._batches is not None and module.training and torch.is_grad_enabled():
            kept = {name: copy.deepcopy(one) if isinstance(one, Cache) else one for name, one in kwargs.items()}
            self._batches.append(kept)  # the call changes its cache

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self._smoother is not None:
            self._trainer.label_smoother = self._smoother.smooth
        self._batches, self._hook, self._smoother = None, None, None


class _KeepsLabels:
    """Trainer's label smoother, which keeps the labels that it is given."""

    def __init__(self, smooth: Any) -> None:
        self.smooth = smooth
        self.labels: list[Tensor] = []
        self.options: dict[str, Any] = {}

    def __call__(self, outputs: Any, labels: Tensor, **options: Any) -> Tensor:
        self.labels.append(labels)
        self.options = {name: value for name, value in options.items() if name != "num_items_in_batch"}
        return self.smooth(outputs, labels, **options)
