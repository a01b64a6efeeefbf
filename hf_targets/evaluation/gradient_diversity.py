"""Gradient diversity: how much the gradients of single samples differ, by which a training may generalise."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_targets.backbones.dropout import in_mode
from hf_targets.backbones.weight_access import is_readable

logger = logging.getLogger(__name__)

Batch = Mapping[str, Any]
"""Arguments of a model's `forward`, tensors of as many rows each, and perhaps other values."""

_NOT_OF_ROWS = ("num_items_in_batch",)
"""Arguments that belong to a whole batch: a sample's loss is divided by its own targets."""


def gradient_diversity(
    model: nn.Module, batch: Batch | Sequence[Batch], *, rows_at_once: int = 8, dropout: bool = False
) -> float:
    """Return sum_i |g_i|^2 / |sum_i g_i|^2, where g_i is the gradient of the loss of sample i alone; at least 1 / n.

    It is 1 / n where all n gradients are equal, and 1 where they are orthogonal. The loss of a sample is the model's
    `loss` of this row, which is divided by the row's own targets. Gradients are those of all trainable parameters, tied
    ones once. They are neither kept nor left in `.grad`; few of them are added in float32, many in float64.

    Gradients of `rows_at_once` rows are computed together by `torch.func`. A model that reads values of tensors, such
    as one that picks masked positions, is called row by row; figures are the same up to rounding.

    Args:
        model: A model whose output has a `loss`, on the device of the batch.
        batch: Its arguments, two rows or more; or a sequence of batches of one row, for models whose arguments are not
            all tensors of so many rows.
        rows_at_once: Rows whose gradients are held at once; memory grows with it.
        dropout: Whether dropout is drawn, for each sample anew, from a fork of the global generator. Else the model is
            in evaluation mode. It is left in the mode that it is in.
    Raises:
        ValueError: If there are fewer than two rows, tensors have other numbers of rows, the model has no loss or no
            trainable parameter, its weights are sharded or offloaded, or all gradients are 0 or cancel out.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        equation (14); Yin et al., "Gradient Diversity: a Key Ingredient for Scalable Distributed Learning".
    Related: `GradientDiversityCallback` logs it in a training.
    """
    if rows_at_once < 1:
        raise ValueError(f"rows_at_once must be 1 or more, got {rows_at_once}")
    rows = _rows_of(batch) if isinstance(batch, Mapping) else list(batch)
    if len(rows) < 2:
        raise ValueError(f"gradients differ between samples, so give two rows or more, got {len(rows)}")
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not parameters:
        raise ValueError("the model has no trainable parameter, so there are no gradients; train some of it")
    if not is_readable(model):
        raise ValueError("gradients of samples need whole weights, and these are sharded or offloaded; load the model")
    sums = [torch.zeros_like(one, dtype=torch.float64) for one in parameters.values()]
    squares = 0.0
    devices = sorted({one.device.index or 0 for one in parameters.values() if one.device.type == "cuda"})
    # a model in training mode may have parts that are not
    mode = nullcontext() if dropout and model.training else in_mode(model, training=dropout)
    with torch.random.fork_rng(devices), mode, torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # of operators that vmap calls in turn
        for gradients in _gradients(model, parameters, rows, rows_at_once):
            for total, one in zip(sums, gradients, strict=True):
                dtype = torch.promote_types(one.dtype, torch.float32)  # float64 for all takes ten times as long
                squares += float(torch.linalg.vector_norm(one, dim=-1, dtype=dtype).double().square().sum())
                total += one.sum(dim=0, dtype=dtype)
    of_sum = sum(float(total.square().sum()) for total in sums)
    if not of_sum > 0:
        raise ValueError(
            f"gradient diversity divides by the squared norm of the summed gradient, and that is {of_sum}; give rows "
            "with labels, and a loss that is finite"
        )
    return squares / of_sum


def _rows_of(batch: Batch) -> list[Batch]:
    """Return the rows of a batch, each as a batch of its own.

    Raises:
        ValueError: If its tensors have different numbers of rows.
    """
    given = {name: value for name, value in batch.items() if name not in _NOT_OF_ROWS}
    counts = {name: len(value) for name, value in given.items() if _is_of_row(value)}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"tensors of a batch must have one row for each sample, got {counts} rows; give a sequence of batches "
            "of one row"
        )
    return [
        {name: value[row : row + 1] if name in counts else value for name, value in given.items()}
        for row in range(next(iter(counts.values()), 0))
    ]


def _gradients(
    model: nn.Module, parameters: dict[str, nn.Parameter], rows: list[Batch], rows_at_once: int
) -> Iterator[list[Tensor]]:
    """Yield the gradients of some rows, (rows, ...) for each parameter, until all rows are through."""
    together = _together(model, parameters) if _are_alike(rows) else None
    start = 0
    while start < len(rows):
        some = rows[start : start + (rows_at_once if together is not None else 1)]
        if together is not None:
            try:
                gradients = together(some)
            except (RuntimeError, ValueError, TypeError) as error:  # an error of the model itself comes again below
                logger.debug("gradients are computed row by row: %s", error)
                together = None
                continue
            yield gradients
        else:
            loss = _loss(model(**some[0]))
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
            yield [one[None] for one in found]
        start += len(some)


def _together(model: nn.Module, parameters: dict[str, nn.Parameter]) -> Callable[[list[Batch]], list[Tensor]]:
    """Return what computes the gradients of several rows in one call of the model."""

    def loss(values: dict[str, Tensor], tensors: dict[str, Tensor], others: dict[str, Any]) -> Tensor:
        return _loss(functional_call(model, values, kwargs={**tensors, **others}))

    gradient = vmap(grad(loss), in_dims=(None, 0, None), randomness="different")

    def gradients(rows: list[Batch]) -> list[Tensor]:
        tensors = {name: torch.stack([row[name] for row in rows]) for name in rows[0] if _is_of_row(rows[0][name])}
        others = {name: value for name, value in rows[0].items() if name not in tensors}
        found = gradient({name: one.detach() for name, one in parameters.items()}, tensors, others)
        return [found[name] for name in parameters]

    return gradients


def _is_of_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _are_alike(rows: list[Batch]) -> bool:
    """Return whether the tensors of all rows have the same shapes."""
    shapes = [{name: value.shape for name, value in row.items() if _is_of_row(value)} for row in rows]
    return all(one == shapes[0] for one in shapes)


def _loss(outputs: Any) -> Tensor:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        raise ValueError("the model must return a loss to have gradients, and there is none; give labels")
    return loss.squeeze()


class GradientDiversityCallback(TrainerCallback):
    """Logs the `gradient_diversity` of the rows of a step, each so many steps, before its update.

    It is of the rows of the first process, all batches of an accumulation together, with dropout, under the training's
    autocast. The training is the same bit for bit as without it.

    Args:
        trainer: The trainer that this is added to.
        every: Steps from one measurement to the next; the first step is measured.
        rows_at_once: As for `gradient_diversity`.
        num_rows: Measure so many rows of a step at most; None: all.
    Raises:
        ValueError: If a number is below 1, or `num_rows` below 2.
    """

    def __init__(self, trainer: Trainer, every: int, *, rows_at_once: int = 8, num_rows: int | None = None) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 step or more, got {every}")
        if num_rows is not None and num_rows < 2:
            raise ValueError(f"num_rows must be 2 or more, as gradients differ between samples, got {num_rows}")
        self._trainer, self._every, self._rows_at_once, self._num_rows = trainer, every, rows_at_once, num_rows
        self._batches: list[Batch] | None = None
        self._hook: Any = None
        self._is_over = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to keep what the model reads."""
        if not self._is_over and state.global_step % self._every == 0 and state.is_world_process_zero:
            self._batches = []
            model = cast(nn.Module, self._trainer.model)
            self._hook = model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure on what was kept, and log."""
        batches, self._batches = self._batches, None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if batches is None:
            return
        if not batches or any("labels" not in batch for batch in batches):
            logger.warning(
                "No gradient diversity is logged: the model reads no labels, as Trainer computes the loss itself. Set "
                "label_smoothing_factor=0, or use the trainer of hf_targets for this model."
            )
            self._is_over = True
            return
        rows = [row for batch in batches for row in _rows_of(batch)][: self._num_rows]
        if len(rows) > 1:
            with self._trainer.compute_loss_context_manager():
                diversity = gradient_diversity(
                    cast(nn.Module, self._trainer.model), rows, rows_at_once=self._rows_at_once, dropout=True
                )
            self._trainer.log({"gradient_diversity": diversity})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the model."""
        if self._hook is not None:
            self._hook.remove()

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._batches is not None and module.training and torch.is_grad_enabled():
            self._batches.append(kwargs)
