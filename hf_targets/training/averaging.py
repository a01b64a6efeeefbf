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
from hf_targets.backbones.weight_access import copy_whole, reshard, whole_tensor
from hf_targets.training.arguments import AveragedTrainingArguments, TargetTrainingArguments
from hf_targets.training.trainer import TargetTrainer

logger = logging.getLogger(__name__)

AVERAGING_NAME = "averaging.safetensors"
"""The file of a checkpoint with what is needed beside its model's file, which has the average: the raw weights.

FSDP and DeepSpeed write, and read, raw weights themselves; there the file has the average.
"""

_RAW, _AVERAGE, _NUM_UPDATES = "raw.", "average.", "num_updates"


class WeightAverage:
    """An average of a model's trainable parameters, by name, in float32 or wider; sharded as they are.

    Exponential: average <- d average + (1 - d) weights after each optimizer step, with d = min(decay, (1 + n) / (10 +
    n)) at the n-th, so that the first weights, which are random, are soon forgotten. Or the mean of the weights after
    each step, as in averaged SGD.

    Args:
        model: Its parameters that take gradients now are averaged, beginning with what they are now.
        decay: In [0, 1); 0 makes the average the last weights. None: the mean.
    Raises:
        ValueError: If weights are not here: offloaded, or in ZeRO-3's partitions.
    Source: Sahoo et al. 2024, its published program. The mean: Polyak and Juditsky 1992; algorithm 1 of Merity et al.,
        "Regularizing and Optimizing LSTM Language Models".
    Departs: `torch.optim.ASGD`, which the latter's program uses, leaves the first step out of the mean, and applies a
        changed learning rate one step late.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        if any(weight.is_meta or hasattr(weight, "ds_id") for weight in model.parameters()):
            raise ValueError(
                "no average can be kept of weights that are offloaded or partitioned by ZeRO-3; train without an "
                "average (ema_decay=None, nonmonotone_interval=None), or with FSDP2, ZeRO-2 or plain data parallelism"
            )
        reshard(model)
        self.num_updates, self.decay, self._model = 0, decay, model
        self._parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.weights: dict[str, Tensor] = {
            name: weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True)
            for name, weight in self._parameters.items()
        }
        self._is_applied = False

    def update(self) -> None:
        """Take the model's weights into the average, once after each optimizer step."""
        assert not self._is_applied
        self.num_updates += 1
        averages = [_local(average) for average in self.weights.values()]
        weights = [
            _local(weight.detach()).to(average.dtype)
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
        self._set(self.weights)

    @torch.no_grad()
    def _set(self, weights: dict[str, Tensor]) -> None:
        reshard(self._model)
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])

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
            self._set(kept)
            self._is_applied = False

    def save(self, file: Path, *, has_raw: bool = True, is_writer: bool = True) -> None:
        """Write what resuming needs beside a checkpoint of the averaged model: its raw weights, and the updates so far.

        The average is written too where the model's type is narrower, so that its checkpoint has a rounded one.

        Args:
            has_raw: False: another file has the raw weights, and this one the average.
            is_writer: Whether this process writes; where weights are sharded all processes call this.
        """
        tensors = {_NUM_UPDATES: torch.tensor(self.num_updates)}
        for name, kept in self._kept(has_raw):
            whole = whole_tensor(kept.detach())
            if is_writer:
                tensors[name] = whole.cpu().contiguous()
        if is_writer:
            save_file(tensors, file)

    def load(self, file: Path) -> None:
        """Go on from a file of `save`: the model, which has the weights of the other file, gets its raw ones.

        Raises:
            ValueError: If the file is not whole, or is of other parameters.
        """
        tensors = read_tensors(file)
        has_raw = any(name.startswith(_RAW) for name in tensors)
        check_tensors(
            file, tensors, {_NUM_UPDATES: torch.Size(), **{name: kept.shape for name, kept in self._kept(has_raw)}}
        )
        self.num_updates = int(tensors[_NUM_UPDATES])
        reshard(self._model)
        if has_raw:  # and the model has the average
            for name, parameter in self._parameters.items():
                self.weights[name].copy_(parameter.detach())
        for name, kept in self._kept(has_raw):
            copy_whole(kept, tensors[name])

    def _kept(self, has_raw: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield what a file has, by its name there."""
        for name, parameter in self._parameters.items():
            if has_raw:
                yield _RAW + name, parameter
            if not has_raw or parameter.dtype != self.weights[name].dtype:
                yield _AVERAGE + name, self.weights[name]


def _local(tensor: Any) -> Tensor:
    """Return this process's shard of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


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
        ValueError: When training starts, if ZeRO-3 has partitioned the weights.
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

    @property
    def _engine_has_raw(self) -> bool:
        """Whether files of FSDP or DeepSpeed have the raw weights."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self._average is not None:
            file, writes = Path(output_dir) / AVERAGING_NAME, self.args.should_save
            self._average.save(file, has_raw=not self._engine_has_raw, is_writer=writes)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        average = self._read_average(checkpoint)  # without an average too: the optimizer's state is that of raw weights
        if self._averaging is None:
            return
        self._averaging.average = average
        if average is None and self._averaging.from_start:
            logger.warning(
                "%s has no %s: the average of the weights begins with those of the checkpoint",
                checkpoint,
                AVERAGING_NAME,
            )

    def _read_average(self, checkpoint: str) -> WeightAverage | None:
        """Return the average of a checkpoint, and give the model, which has been read from it, its raw weights."""
        file = Path(checkpoint) / AVERAGING_NAME
        if not file.is_file():
            return None
        average = WeightAverage(cast(nn.Module, self.model), 0.0 if self._averaging is None else self._averaging.decay)
        average.load(file)
        return average

    def _load_best_model(self) -> None:
        if self._averaging is not None:
            self._averaging.finish()  # a checkpoint's model has averaged weights already
        super()._load_best_model()
        if self._engine_has_raw and self._averaging is not None:
            self._averaging.average = self._read_average(cast(str, self.state.best_model_checkpoint))
            self._averaging.finish()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the averaged weights, which callbacks meanwhile find in the model."""
        with self.averaged_weights():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the loop of an evaluation or a prediction on the averaged weights."""
        with self.averaged_weights():
            return super().evaluation_loop(*args, **kwargs)
