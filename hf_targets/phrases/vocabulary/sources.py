"""Where the phrases of a vocabulary were found, as rows of numbers: many tuples slow the garbage collector."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

_NO_ROWS = np.empty((0, 4), np.int64)


class PhraseSource(NamedTuple):
    """Where a phrase was found: the characters [start, end) of a document, without leading white space."""

    document: str
    start: int
    end: int


class SourceTable:
    """The sources of each phrase, in the order in which they were added, each once.

    >>> table = SourceTable()
    >>> table.add("a", [8, 9], [0, 4], [3, 7])
    >>> table.add("b", [8], [5], [8])
    >>> table.of(8)
    (PhraseSource(document='a', start=0, end=3), PhraseSource(document='b', start=5, end=8))
    """

    def __init__(self) -> None:
        self._documents: dict[str, int] = {}
        self._rows = _NO_ROWS  # phrase, document, start, end; sorted by phrase
        self._added: list[np.ndarray] = []  # rows that came later

    def copy(self) -> "SourceTable":
        """Return a table of its own with the same sources."""
        return self.of_rows(list(self._documents), self._sorted())

    def numbered(self, texts: Iterable[str]) -> dict[str, str]:
        """Return texts by new names: numbers that no document has, from the number of documents on."""
        free = (name for name in map(str, count(len(self._documents))) if name not in self._documents)
        return dict(zip(free, texts, strict=False))

    def name(self, documents: Iterable[str]) -> None:
        """Keep the names of documents, which may have no sources yet."""
        for document in documents:
            self._documents.setdefault(document, len(self._documents))

    def add(
        self,
        document: str,
        phrases: Sequence[int],
        starts: Sequence[int] | np.ndarray,
        ends: Sequence[int] | np.ndarray,
    ) -> None:
        """Add a source in one document to each of some phrases."""
        number = self._documents.setdefault(document, len(self._documents))
        self._added.append(np.column_stack([phrases, np.full(len(phrases), number), starts, ends]).astype(np.int64))

    def add_each(self, phrases: Iterable[int], sources: Iterable[Iterable[PhraseSource]]) -> None:
        """Add some sources to each of some phrases."""
        rows = [
            (phrase, self._documents.setdefault(source.document, len(self._documents)), source.start, source.end)
            for phrase, added in zip(phrases, sources, strict=True)
            for source in added
        ]
        self._added += [np.array(rows, np.int64)] if rows else []

    def of(self, phrase: int) -> tuple[PhraseSource, ...]:
        """Return the sources of a phrase."""
        rows = self._sorted()
        first, stop = np.searchsorted(rows[:, 0], [phrase, phrase + 1])
        names = list(self._documents) if stop > first else []
        found = (PhraseSource(names[number], *span) for _, number, *span in rows[first:stop].tolist())
        return tuple(dict.fromkeys(found))

    def remove(self, phrases: Iterable[int]) -> None:
        """Remove the sources of some phrases."""
        rows = self._sorted()
        self._rows = rows[~np.isin(rows[:, 0], np.fromiter(phrases, np.int64))]

    def rows(self) -> tuple[list[str], np.ndarray]:
        """Return the names of all documents ever added, and (sources, 4): phrase, index of the name, start and end."""
        return list(self._documents), self._sorted()

    def by_document(self) -> list[np.ndarray]:
        """Return the phrases of each document that has any, by the order of the documents; each may come repeatedly."""
        rows = self._sorted()
        rows = rows[np.argsort(rows[:, 1], kind="stable"), :2]
        return [part[:, 0] for part in np.split(rows, np.flatnonzero(np.diff(rows[:, 1])) + 1) if len(part)]

    @classmethod
    def of_rows(cls, names: Sequence[str], rows: np.ndarray) -> "SourceTable":
        """Return the table that `rows` was made from."""
        table = cls()
        table._documents = {name: number for number, name in enumerate(names)}
        table._added = [rows]
        return table

    def _sorted(self) -> np.ndarray:
        if self._added:
            rows = np.concatenate([self._rows, *self._added])
            self._rows, self._added = rows[np.argsort(rows[:, 0], kind="stable")], []
        return self._rows
