"""What devices and modes of torch ask of code: types that there are, autocast switched off, constants when compiled."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TypeVar, cast

import torch

F = TypeVar("F", bound=Callable)


def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device without it, as Apple's."""
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context in which autocast is off on a device; nothing changes on a device that has none."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


def break_graph(make: F) -> F:
    """Let the compiler break its graph at each call of `make`."""
    return cast(F, torch.compiler.disable(make))


def compiled_constant(make: F) -> F:
    """Let the compiler treat the result of `make` as a constant; if an argument varies, it breaks its graph there."""
    uncompiled = break_graph(make)

    @torch.compiler.assume_constant_result
    @wraps(make)
    def constant(*arguments, **options):
        return uncompiled(*arguments, **options)

    return cast(F, constant)
