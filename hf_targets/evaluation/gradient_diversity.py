"""Gradient diversity: how much the gradients of single samples differ, by which a training may generalise."""

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from hf_targets.backbones.dropout import in_mode
from hf_targets.backbones.weight_access import is_readable
from hf_targets.maths.torch_modes import widest

Batch = Mapping[str, Any]
"""Arguments of a model's `forward`, tensors of as many rows each, and perhaps other values."""


class NoDiversityError(ValueError):
    """Gradients have no diversity: all are 0, they cancel out, or they are not finite."""


def gradient_diversity(model: nn.Module, batch: Batch | Sequence[Batch], *, dropout: bool = False) -> float:
    """Return sum_i |g_i|^2 / |sum_i g_i|^2, where g_i is the gradient of the loss of sample i alone; at least 1 / n.

    It is 1 / n where all n gradients are equal, and 1 where they are orthogonal. The loss of a sample is the model's
    `loss` of this row, which is divided by the row's own targets. Gradients are those of all trainable parameters, tied
    ones once; `.grad` stays as it is.

    Gradients are computed row by row. A compiled model is measured as it was before `torch.compile`.

    Args:
        model: A model whose output has a `loss`, on the device of the batch.
        batch: Its arguments, two rows or more; or a sequence of batches of one row, for models whose arguments are not
            all tensors of so many rows.
        dropout: Whether dropout is drawn, for each sample anew, from a fork of the global generator. Else the model is
            in evaluation mode. It is left in the mode that it is in.
    Raises:
        NoDiversityError: A ValueError, if all gradients are 0 or cancel out, or one is not finite.
        ValueError: If there are fewer than two rows, tensors have other numbers of rows, the model has no loss or no
            trainable parameter, or its weights are sharded or offloaded.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        equation (14); Yin et al., "Gradient Diversity: a Key Ingredient for Scalable Distributed Learning".
    Related: `GradientDiversityCallback` logs it in a training.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    rows = rows_of(batch) if isinstance(batch, Mapping) else list(batch)
    parameters = [one for one in model.parameters() if one.requires_grad]
    if len(rows) < 2 or not parameters:
        raise ValueError(
            f"gradients of trainable parameters differ between samples, so give two rows or more, got {len(rows)} rows "
            f"and {len(parameters)} trainable parameters"
        )
    if not is_readable(model):
        raise ValueError("gradients of samples need whole weights, and these are sharded or offloaded; load the model")
    sums = [torch.zeros_like(one, dtype=widest(one.device)) for one in parameters]
    squares = 0.0
    devices = sorted({one.device.index or 0 for one in parameters if one.device.type == "cuda"})
    # a model in training mode may have parts that are not
    mode = nullcontext() if dropout and model.training else in_mode(model, training=dropout)
    with torch.random.fork_rng(devices), mode, torch.enable_grad(), _eager(model):
        for row in rows:
            for total, one in zip(sums, _gradients_of_row(model, parameters, row), strict=True):
                squares += _square(one)
                total += one
    of_sum = sum(float(total.square().sum()) for total in sums)
    if not (of_sum > 0 and math.isfinite(of_sum) and math.isfinite(squares)):
        raise NoDiversityError(
            f"gradient diversity is the sum of squared norms, {squares}, over the squared norm of the sum, {of_sum}; "
            "give rows with labels, and a loss that is finite"
        )
    return squares / of_sum


def rows_of(batch: Batch) -> list[Batch]:
    """Return the rows of a batch, each as a batch of its own; a cache in it is copied for each row."""
    # a sample's loss is divided by its own targets
    given = {name: value for name, value in batch.items() if name != "num_items_in_batch"}
    counts = {name: len(value) for name, value in given.items() if _is_of_row(value)}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"tensors of a batch must have one row for each sample, got {counts} rows; give a sequence of batches "
            "of one row"
        )

    def part(name: str, row: int) -> Any:
        value: Any = given[name]
        if isinstance(value, Cache):
            own: Any = copy.deepcopy(value)
            own.batch_select_indices(torch.tensor([row]))
            return own
        return value[row : row + 1] if name in counts else value

    return [{name: part(name, row) for name in given} for row in range(next(iter(counts.values()), 0))]


def _square(gradient: Tensor) -> float:
    """Return the sum of squares; in float64 where float32, which takes a tenth of the time, has no such numbers."""
    norm = torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
    if not 1e-15 < float(norm) < math.inf:
        norm = torch.linalg.vector_norm(gradient.cpu(), dtype=torch.float64)
    return float(norm) ** 2


def _eager(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which parts of a model that are compiled run as they were written."""
    is_compiled = any(getattr(part, "_compiled_call_impl", None) is not None for part in model.modules())
    return torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()


def _gradients_of_row(model: nn.Module, parameters: list[nn.Parameter], row: Batch) -> list[Tensor]:
    """Return the gradients of one row, for each parameter, and leave `.grad` as it is.

    Layers that run a backward pass inside of their own, as a Reformer's, leave there what autograd does not return.
    """
    kept = [one.grad for one in parameters]
    try:
        for one in parameters:
            one.grad = None
        loss = _loss(model(**row))
        if any(_is_reentrant(part) for part in model.modules()):
            loss.backward()
            found: Any = [torch.zeros_like(one) for one in parameters]
        else:
            found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return [got if one.grad is None else got + one.grad for got, one in zip(found, parameters, strict=True)]
    finally:
        for one, before in zip(parameters, kept, strict=True):
            one.grad = before


def _is_reentrant(module: nn.Module) -> bool:
    """Return whether a module is checkpointed in the way that `torch.autograd.grad` refuses."""
    keywords = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {})
    return bool(keywords.get("use_reentrant", False))


def _is_of_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _loss(outputs: Any) -> Tensor:
    first = outputs[0] if isinstance(outputs, tuple) and outputs else None  # the loss, where there is one
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", first)
    if not isinstance(loss, Tensor) or loss.numel() != 1:  # without labels a tuple begins with something else
        raise ValueError("the model must return a loss to have gradients, and there is none; give labels")
    return loss.squeeze()
