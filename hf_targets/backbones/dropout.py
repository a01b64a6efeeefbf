"""A mode for a while: evaluation, to check or measure a model without dropout, or training, to measure with it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn


def without_dropout(model: nn.Module) -> AbstractContextManager[None]:
    """Set every module of a model to evaluation mode inside the `with` block, then restore each module's mode."""
    return in_mode(model, training=False)


_LOCK = Lock()
_holders: "WeakKeyDictionary[nn.Module, dict[bool, _Holders]]" = WeakKeyDictionary()


@dataclass
class _Holders:
    """How many blocks hold a model in a mode, and what the modes of its modules were before the first of them."""

    modes: list[tuple[nn.Module, bool]]
    count: int = 1


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set every module of a model to a mode inside the `with` block, then restore each module's mode.

    Of several threads that hold a model in the same mode the last one restores.
    """
    with _LOCK:
        of_model = _holders.setdefault(model, {})
        if training in of_model:
            of_model[training].count += 1
        else:
            of_model[training] = _Holders([(module, module.training) for module in model.modules()])
            model.train(training)
    try:
        yield
    finally:
        with _LOCK:
            of_model[training].count -= 1
            if not of_model[training].count:
                for module, mode in of_model.pop(training).modes:
                    module.training = mode
