"""A Trainer that keeps an average of the weights, and evaluates, saves and leaves that."""

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from hf_targets.training.arguments import AveragedTrainingArguments, TargetTrainingArguments
from hf_targets.training.averaging import AVERAGING_NAME, AveragingCallback, ExponentialAverage, WeightAverage
from hf_targets.training.trainer import TargetTrainer

logger = logging.getLogger(__name__)


class AveragedTrainer(TargetTrainer):
    """Trainer whose model is the average of its weights.

    The average, with `ema_decay` an exponential one, is what is evaluated, what `save_model` and checkpoints save as
    the model (so that a checkpoint is the model whose numbers were logged, and the best one can be loaded at the end),
    and what the model is left with when `train` returns. A checkpoint has the raw weights too, in
    `averaging.safetensors`, from which a resumed training goes on just as an unbroken one would. Meanwhile the model
    has its raw weights, but in callbacks on an evaluation and under `averaged_weights`.

    Raises:
        ValueError: If the weights are sharded (FSDP, DeepSpeed).
    """

    def __init__(self, model: PreTrainedModel | nn.Module, args: TargetTrainingArguments, **kwargs: Any) -> None:
        self._averaging: AveragingCallback | None = None
        super().__init__(model=model, args=args, **kwargs)
        self._averaging = self._make_averaging()
        if self._averaging is not None:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise ValueError(
                    f"{self.averaging_setting} must be None where weights are sharded (FSDP, DeepSpeed), got "
                    f"{getattr(args, self.averaging_setting)}; the average is of whole weights, as every process of "
                    "plain data parallelism has them"
                )
            self.add_callback(self._averaging)

    averaging_setting: str = "ema_decay"
    """The argument that is None where there is no average."""

    def _make_averaging(self) -> AveragingCallback | None:
        """Return the callback that keeps the average; None without one."""
        decay = cast(AveragedTrainingArguments, self.args).ema_decay
        return None if decay is None else AveragingCallback(partial(ExponentialAverage, decay=decay))

    @property
    def checkpoint_files(self) -> set[str]:
        """What a checkpoint has beside what Trainer writes."""
        from_start = self._averaging is not None and self._averaging.from_start
        return {*super().checkpoint_files, *([AVERAGING_NAME] if from_start else [])}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does; the average of the weights begins anew, or where the checkpoint to resume from was."""
        if self._averaging is not None:
            self._averaging.average = None
        return super().train(*args, **kwargs)

    @property
    def _average(self) -> WeightAverage | None:
        return None if self._averaging is None else self._averaging.average

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Give the model its averaged weights for the time of a `with`; after training it has them anyway."""
        return nullcontext() if self._average is None else self._average.applied()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, with its averaged weights."""
        with self.averaged_weights():
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self._average is not None and self.args.should_save:
            self._average.save(Path(output_dir) / AVERAGING_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        file = Path(resume_from_checkpoint) / AVERAGING_NAME
        if file.is_file():
            make = partial(ExponentialAverage, decay=0.0) if self._averaging is None else self._averaging.make
            average = make(cast(nn.Module, self.model))
            average.load(file)  # without an average too, as the optimizer's state is that of the raw weights
            if self._averaging is not None:
                self._averaging.average = average
        elif self._averaging is not None and self._averaging.from_start:
            logger.warning(
                "%s has no %s: the average of the weights begins with those of the checkpoint",
                resume_from_checkpoint,
                AVERAGING_NAME,
            )

    def _load_best_model(self) -> None:
        if self._averaging is not None:
            self._averaging.finish()  # a checkpoint's model has averaged weights already
        super()._load_best_model()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the averaged weights, which callbacks meanwhile find in the model."""
        with self.averaged_weights():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the loop of an evaluation or a prediction on the averaged weights."""
        with self.averaged_weights():
            return super().evaluation_loop(*args, **kwargs)
