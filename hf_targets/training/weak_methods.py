"""Methods that a trainer hands to what it holds: as bound methods they would keep it, its model and processes alive."""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


class WeaklyBound:
    """A call of a method, which does not keep its object alive.

    Args:
        method: A bound method.
        otherwise: What a call returns once the object is gone.
    """

    def __init__(self, method: Callable[..., Any], otherwise: Any = None) -> None:
        self._method, self._otherwise = WeakMethod(method), otherwise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        method = self._method()
        return self._otherwise if method is None else method(*args, **kwargs)
