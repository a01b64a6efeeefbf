"""A mapping whose values are imported when they are first read."""

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from typing import Any

Load = Callable[[], tuple[Hashable, Any]]
"""Imports an entry, and returns its key and value."""


class LazyEntries(MutableMapping[Hashable, Any]):
    """A dictionary in which some entries have not been imported yet.

    Such an entry is known by a name: its key if this is a string, `module:qualified name` if the key is a class. Asking
    for a key imports the entry of this name and no other. Iterating imports all.

    Args:
        entries: What is there already.
    """

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        self._entries = dict(entries)
        self._waiting: dict[str, Load] = {}

    def add(self, name: str, load: Load) -> None:
        """Add an entry to import later, in place of one with this name as its key."""
        self._waiting[name] = load

    def __getitem__(self, key: Hashable) -> Any:
        self._import(_name(key))
        return self._entries[key]

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self._entries[key] = value
        self._waiting.pop(_name(key), None)

    def __delitem__(self, key: Hashable) -> None:
        self._import(_name(key))
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries or _name(key) in self._waiting

    def __iter__(self) -> Iterator[Hashable]:
        for name in list(self._waiting):
            self._import(name)
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries) + sum(name not in self._entries for name in self._waiting)

    def _import(self, name: str) -> None:
        """Import the entry of a name if it is not there yet. Two threads that do so find the same classes."""
        if (load := self._waiting.get(name)) is None:
            return
        key, value = load()
        if self._waiting.get(name) is load:  # not set or added anew meanwhile
            self._entries[key] = value
            self._waiting.pop(name, None)


def _name(key: object) -> str:
    return f"{key.__module__}:{key.__qualname__}" if isinstance(key, type) else str(key)
