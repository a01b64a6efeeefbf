"""Averages of the weights over the steps of a training: what it leaves behind is smoother than its last step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn
from transformers import TrainerCallback

from hf_targets.backbones.checkpoint import check_tensors
from hf_targets.backbones.published import read_tensors
from hf_targets.backbones.weight_access import is_readable

AVERAGING_NAME = "averaging.safetensors"
"""The file of a checkpoint with what its model's file, which has the average, does not: the raw weights."""

_RAW, _AVERAGE, _NUM_UPDATES = "raw.", "average.", "num_updates"


class WeightAverage(ABC):
    """An average of a model's trainable parameters, by name, in float32 or wider.

    Args:
        model: Its parameters that take gradients now are averaged, beginning with what they are now.
    Raises:
        ValueError: If weights are sharded: the average is of whole ones, as a checkpoint has them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.num_updates = 0
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
        self._mix(averages, weights)

    @abstractmethod
    def _mix(self, averages: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Take the weights after update `num_updates`, from 1 on, into the averages, in place."""

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

        The average is written too where the model's type is narrower than the average's, so that its checkpoint has
        but a rounded one.
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


class ExponentialAverage(WeightAverage):
    """Exponential moving average of a model's trainable parameters.

    average <- d average + (1 - d) weights after each optimizer step, with d = min(decay, (1 + n) / (10 + n)) at the
    n-th, so that the first weights, which are random, are soon forgotten.

    Args:
        decay: In [0, 1); 0 makes the average the last weights.
    Source: Sahoo et al. 2024, its published program.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.decay = decay

    def _mix(self, averages: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        get_ema_multi_avg_fn(decay)(list(averages), list(weights), self.num_updates)


class MeanOfWeights(WeightAverage):
    """Mean of a model's trainable parameters after each optimizer step, as in averaged SGD; before one, as they are.

    Source: Polyak and Juditsky 1992; algorithm 1 of Merity et al., "Regularizing and Optimizing LSTM Language Models".
    Departs: `torch.optim.ASGD`, which their program uses, leaves the first step out of the mean, and applies a changed
        learning rate one step late.
    """

    def _mix(self, averages: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        get_swa_multi_avg_fn()(list(averages), list(weights), self.num_updates - 1)


class AveragingCallback(TrainerCallback):
    """Keeps an average of the weights up to a training's last step, when it becomes the model's weights.

    Args:
        make: Makes the average of a model.
        from_start: Whether the average begins with the first step; else `begin` is called later.
    """

    def __init__(self, make: Callable[[nn.Module], WeightAverage], *, from_start: bool = True) -> None:
        self.make = make
        self.from_start = from_start
        self.average: WeightAverage | None = None
        """None before it begins, and after training, when the model's weights are the average."""

    def begin(self, model: nn.Module) -> None:
        """Begin with the model's weights, unless a checkpoint has been read."""
        if self.average is None:
            self.average = self.make(model)

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
