"""Averages of the weights over the steps of a training, and the Trainer that evaluates, saves and leaves them."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn
from transformers import PreTrainedModel, TrainerCallback

from hf_targets.backbones.checkpoint import check_tensors
from hf_targets.backbones.published import read_tensors
from hf_targets.backbones.weight_access import is_readable
from hf_targets.training.arguments import AveragedTrainingArguments, TargetTrainingArguments
from hf_targets.training.trainer import TargetTrainer

logger = logging.getLogger(__name__)

AVERAGING_NAME = "averaging.safetensors"
"""The file of a checkpoint with what its model's file, which has the average, does not: the raw weights."""

_RAW, _AVERAGE, _NUM_UPDATES = "raw.", "average.", "num_updates"


class WeightAverage:
    """An average of a model's trainable parameters, by name, in float32 or wider.

    Exponential: average <- d average + (1 - d) weights after each optimizer step, with d = min(decay, (1 + n) / (10 +
    n)) at the n-th, so that the first weights, which are random, are soon forgotten. Or the mean of the weights after
    each step, as in averaged SGD.

    Args:
        model: Its parameters that take gradients now are averaged, beginning with what they are now.
        decay: In [0, 1); 0 makes the average the last weights. None: the mean.
    Raises:
        ValueError: If weights are sharded: the average is of whole ones, as a checkpoint has them.
    Source: Sahoo et al. 2024, its published program. The mean: Polyak and Juditsky 1992; algorithm 1 of Merity et al.,
        "Regularizing and Optimizing LSTM Language Models".
    Departs: `torch.optim.ASGD`, which the latter's program uses, leaves the first step out of the mean, and applies a
        changed learning rate one step late.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self.num_updates, self.decay = 0, decay
        self._parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if not is_readable(model):
            raise ValueError(
                "the weights of this model are sharded or offloaded, so that no average of them can be kept; train "
                "without an average, or in plain data parallelism"
            )
        self.weights: dict[str, Tensor] = {
            name: weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True)
            for name, weight in self._parameters.items()
        }
        self._is_applied = False

    def update(self) -> None:
        """Take the model's weights into the average, once after each optimizer step."""
        assert not self._is_applied
        self.num_updates += 1
        averages = list(self.weights.values())
        weights = [
            weight.detach().to(average.dtype)
            for weight, average in zip(self._parameters.values(), averages, strict=True)
        ]
        n = self.num_updates
        if self.decay is None:
            get_swa_multi_avg_fn()(averages, weights, n - 1)
        else:
            get_ema_multi_avg_fn(min(self.decay, (1 + n) / (10 + n)))(averages, weights, n)

    @torch.no_grad()
    def apply(self) -> None:
        """Make the average the model's weights, in the model's own type."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self.weights[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make the average the model's weights for the time of a `with`, then put back what was; may be nested."""
        if self._is_applied:
            yield
            return
        kept = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._is_applied = True
        try:
            self.apply()
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(kept[name])
            self._is_applied = False

    def save(self, file: Path) -> None:
        """Write what resuming needs beside a checkpoint of the averaged model: its raw weights, and the updates so far.

        The average is written too where the model's type is narrower, so that its checkpoint has a rounded one.
        """
        tensors = {_NUM_UPDATES: torch.tensor(self.num_updates)}
        for name, parameter in self._parameters.items():
            tensors[_RAW + name] = parameter.detach().contiguous()
            if parameter.dtype != self.weights[name].dtype:
                tensors[_AVERAGE + name] = self.weights[name].contiguous()
        save_file(tensors, file)

    @torch.no_grad()
    def load(self, file: Path) -> None:
        """Go on from a file of `save`: the model, which has the averaged weights, gets its raw ones.

        Raises:
            ValueError: If the file is not whole, or is of other parameters.
        """
        tensors = read_tensors(file)
        shapes = {_NUM_UPDATES: torch.Size()}
        for name, parameter in self._parameters.items():
            shapes[_RAW + name] = parameter.shape
            if parameter.dtype != self.weights[name].dtype:
                shapes[_AVERAGE + name] = parameter.shape
        check_tensors(file, tensors, shapes)
        self.num_updates = int(tensors[_NUM_UPDATES])
        for name, parameter in self._parameters.items():
            self.weights[name].copy_(tensors.get(_AVERAGE + name, parameter))
            parameter.copy_(tensors[_RAW + name])


class AveragingCallback(TrainerCallback):
    """Keeps an average of the weights up to a training's last step, when it becomes the model's weights.

    Args:
        decay: Of a `WeightAverage`.
        from_start: Whether the average begins with the first step; else `begin` is called later.
    """

    def __init__(self, decay: float | None, *, from_start: bool = True) -> None:
        self.decay, self.from_start = decay, from_start
        self.average: WeightAverage | None = None
        """None before it begins, and after training, when the model's weights are the average."""

    def begin(self, model: nn.Module) -> None:
        """Begin with the model's weights, unless a checkpoint has been read."""
        if self.average is None:
            self.average = WeightAverage(model, self.decay)

    def on_train_begin(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        """Begin the average, if it is one from the start."""
        if self.from_start:
            self.begin(model)

    def on_step_end(self, *args: Any, optimizer: AcceleratedOptimizer, **kwargs: Any) -> None:
        """Take the weights in, unless the step was skipped, as it is where gradients in half precision overflow."""
        if self.average is not None and not optimizer.step_was_skipped:
            self.average.update()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Leave the model with the averaged weights."""
        self.finish()

    def finish(self) -> None:
        """Make the average the model's weights for good."""
        if self.average is not None:
            self.average.apply()
            self.average = None


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
            self.add_callback(self._averaging)

    def _make_averaging(self) -> AveragingCallback | None:
        """Return the callback that keeps the average; None without one."""
        decay = cast(AveragedTrainingArguments, self.args).ema_decay
        return None if decay is None else AveragingCallback(decay)

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
            decay = 0.0 if self._averaging is None else self._averaging.decay
            average = WeightAverage(cast(nn.Module, self.model), decay)
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
