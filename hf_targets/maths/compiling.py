"""What `torch.compile` must not trace: look-ups of what was computed before, and loops over numbers."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

import torch

F = TypeVar("F", bound=Callable)


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
