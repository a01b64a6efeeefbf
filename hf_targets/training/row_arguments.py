"""Arguments of a training that one row of a comparison has for itself."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hf_targets.maths.cosine_regularization import check_cosine_weight
from hf_targets.training.arguments import TargetTrainingArguments

Made = TypeVar("Made")


def with_arguments(make: Callable[..., Made], **changes: Any) -> Callable[..., Made]:
    """Return what makes a trainer whose `args` are a copy of those given, with these values for some of them."""

    def make_changed(*, args: TargetTrainingArguments, **others: Any) -> Made:
        args = copy.deepcopy(args)
        for name, value in changes.items():
            setattr(args, name, value)
        return make(args=args, **others)

    return make_changed


def cosine_weight_of(name: str, row: Mapping[str, Any]) -> float | None:
    """Return the `cosine_weight` that a row has for itself; None: it has that of the arguments.

    Raises:
        ValueError: If it is no number, or out of range.
    """
    if (weight := row.get("cosine_weight")) is None:
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"cosine_weight of row {name} must be a number, 0 or more, got {weight!r}")
    try:
        check_cosine_weight(float(weight))
    except ValueError as error:
        raise ValueError(f"row {name}: {error}") from error
    return float(weight)
