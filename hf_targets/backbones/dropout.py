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
_holders: "WeakKeyDictionary[nn.Module, list[_Holder]]" = WeakKeyDictionary()  # those of each model, as they came


@dataclass(eq=False)
class _Holder:
    """A block that holds a model in a mode, and the modules whose mode it changed, with what it was."""

    changed: list[tuple[nn.Module, bool]]


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set every module of a model to a mode inside the `with` block, then restore each module's mode.

    Where blocks of several threads overlap, the model stays as it is until the last of them restores it.
    """
    with _LOCK:
        holder = _Holder([(module, module.training) for module in model.modules() if module.training != training])
        if holder.changed:
            model.train(training)
        _holders.setdefault(model, []).append(holder)
    try:
        yield
    finally:
        with _LOCK:
            holders = _holders[model]
            place = holders.index(holder)
            holders.remove(holder)
            if place < len(holders):  # a block of another thread came later, and restores what this one changed
                holders[place].changed += holder.changed
            else:
                for module, mode in holder.changed:
                    module.training = mode
