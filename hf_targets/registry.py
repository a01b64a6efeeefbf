"""A table of plug-in classes by name, which other packages may extend."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)


class UnknownName(ValueError, KeyError):
    """No class has this name; a `KeyError` too, as `get` and `in` of a mapping expect."""

    __str__ = ValueError.__str__


class Registry(Mapping[str, Kind]):
    """Classes of one kind, by name.

    Args:
        kind: The kind's name in error messages, such as "sampler".
        base: The class that each class must derive from; None: any class.
        reserved: Names that may not be registered, as they have another meaning where names of this kind are used.
    """

    def __init__(self, kind: str, base: type | None = None, *, reserved: Collection[str] = ()) -> None:
        self.kind, self.base, self.reserved = kind, base, reserved
        self._classes: dict[str, Kind] = {}

    def register(self, name: str, cls: Kind) -> Kind:
        """Add a class under a name, and return the class.

        Raises:
            ValueError: If the name is not an identifier, is reserved, or belongs to another class; or if `cls` is not a
                class of this kind.
        """
        new = getattr(cls, "__qualname__", repr(cls))
        if not name.isidentifier() or name in self.reserved or self._classes.get(name, cls) is not cls:
            raise ValueError(f"{name!r} is no identifier, or the name of another {self.kind}; choose one for {new}")
        if not isinstance(cls, type) or (self.base is not None and not issubclass(cls, self.base)):
            base = "a class" if self.base is None else f"a class derived from {self.base.__qualname__}"
            raise ValueError(f"a {self.kind} must be {base}, got {new}")
        self._classes[name] = cls
        return cls

    def __getitem__(self, name: str) -> Kind:
        """Return the class of this name.

        Raises:
            UnknownName: A ValueError, if no class has this name; the message lists all names.
        """
        if not isinstance(name, str) or name not in self._classes:
            raise UnknownName(f"{self.kind} must be one of {', '.join(self)}, got {name!r}")
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


def import_folder(package: str, path: Iterable[str]) -> None:
    """Import the modules of a package, each of which registers its classes, so that one more is one file more."""
    for module in iter_modules(path):
        import_module(f"{package}.{module.name}")
