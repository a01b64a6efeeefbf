"""Methods that a trainer hands to what it holds: as bound methods they would keep it, its model and processes alive."""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


class WeaklyBound:
    """A call of a method, which does not keep its object alive. Its copy is bound to the copy of the object.

    Args:
        method: A bound method.
        is_needed: Whether a call is an error once the object is gone. Otherwise it does nothing, and returns None.
    Raises:
        ReferenceError: In a call that is needed, if the object is gone.
    """

    def __init__(self, method: Callable[..., Any] | None, *, is_needed: bool = True) -> None:
        self._method = _nothing if method is None else WeakMethod(method)
        self._is_needed = is_needed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        method = self._method()
        if method is None and self._is_needed:
            raise ReferenceError("this is a method of a trainer that is gone; keep the trainer, or give another method")
        return None if method is None else method(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._method(), self._is_needed)


def _made(method: Callable[..., Any] | None, is_needed: bool) -> WeaklyBound:
    return WeaklyBound(method, is_needed=is_needed)


def _nothing() -> None:
    return None
