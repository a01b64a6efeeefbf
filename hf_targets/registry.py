"""A table of plug-ins by name, to which a package of someone else's may add."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)


class Registry(Mapping[str, Kind]):
    """Classes of one kind, by name.

    Args:
        kind: What they are, in the words of an error: "sampler".
        methods: Names that each class must have.
    """

    def __init__(self, kind: str, *methods: str) -> None:
        self.kind = kind
        self.methods = methods
        self._classes: dict[str, Kind] = {}

    def register(self, name: str, cls: Kind) -> Kind:
        """Add a class, and return it.

        Raises:
            ValueError: If the name is taken by another class, is none, or the class lacks a method.
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a {self.kind} is named by an identifier, got {name!r}")
        if name in self._classes and self._classes[name] is not cls:
            raise ValueError(
                f"the {self.kind} {name!r} is {self._classes[name].__qualname__} already; register "
                f"{getattr(cls, '__qualname__', cls)} under another name"
            )
        if missing := [method for method in self.methods if not callable(getattr(cls, method, None))]:
            raise ValueError(f"a {self.kind} has {', '.join(self.methods)}, and {name!r} lacks {', '.join(missing)}")
        self._classes[name] = cls
        return cls

    def __getitem__(self, name: str) -> Kind:
        """Return the class of that name.

        Raises:
            ValueError: If there is none; it names those there are.
        """
        if name not in self._classes:
            raise ValueError(f"{self.kind} must be one of {', '.join(self)}, got {name!r}")
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)
