"""A table of plug-ins by name, to which a package of someone else's may add."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=type)


class Registry(Mapping[str, Kind]):
    """Classes of one kind, by name.

    Args:
        kind: What they are, in the words of an error: "sampler".
        base: The class that each must derive from; None: any class.
        needs: Methods that each must have of its own, where the base leaves them open.
        reserved: Names that mean something else where these are used.
    """

    def __init__(
        self, kind: str, base: type | None = None, *, needs: Collection[str] = (), reserved: Collection[str] = ()
    ) -> None:
        self.kind, self.base, self.needs, self.reserved = kind, base, needs, reserved
        self._classes: dict[str, Kind] = {}

    def register(self, name: str, cls: Kind) -> Kind:
        """Add a class, and return it.

        Raises:
            ValueError: If the name is taken by another class, reserved, or none; if it is no class of this kind, or
                lacks a method.
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a {self.kind} is named by an identifier, got {name!r}")
        told = getattr(cls, "__qualname__", repr(cls))
        if name in self.reserved:
            raise ValueError(f"{name!r} means something else where a {self.kind} is named; register {told} otherwise")
        if name in self._classes and self._classes[name] is not cls:
            taken = self._classes[name].__qualname__
            raise ValueError(f"the {self.kind} {name!r} is {taken} already; register {told} under another name")
        if not isinstance(cls, type) or (self.base is not None and not issubclass(cls, self.base)):
            base = "a class" if self.base is None else f"a class derived from {self.base.__qualname__}"
            raise ValueError(f"a {self.kind} is {base}, got {told}")
        if missing := [method for method in self.needs if not _has(cls, method)]:
            raise ValueError(f"a {self.kind} has {', '.join(self.needs)}, and {told} lacks {', '.join(missing)}")
        self._classes[name] = cls
        return cls

    def __getitem__(self, name: str) -> Kind:
        """Return the class of that name.

        Raises:
            ValueError: If there is none; it names those there are.
        """
        if name not in self:
            raise ValueError(f"{self.kind} must be one of {', '.join(self)}, got {name!r}")
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


def _has(cls: Any, method: str) -> bool:
    found = inspect.getattr_static(cls, method, None)
    is_open = found is nn.Module.forward or getattr(found, "__isabstractmethod__", False)
    return found is not None and not is_open and callable(getattr(cls, method))
