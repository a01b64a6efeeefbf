"""A mode for a while: evaluation, to check or measure a model without dropout, or training, to measure with it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


def without_dropout(model: nn.Module) -> AbstractContextManager[None]:
    """Set every module of a model to evaluation mode inside the `with` block, then restore each module's mode."""
    return in_mode(model, training=False)


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set every module of a model to a mode inside the `with` block, then restore each module's mode."""
    changed = [module for module in model.modules() if module.training != training]
    if changed:
        model.train(training)
    try:
        yield
    finally:
        for module in changed:
            module.training = not training
