"""The table of phrases of a training batch: each entry is a prefix of a window, and each window is encoded once."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

Phrase = tuple[int, ...]
MIN_PHRASE_TOKENS = 2  # the static vocabulary has the single tokens


class PhraseWindow(NamedTuple):
    """The phrases that are prefixes of `tokens` with at least `shortest` tokens, `tokens` itself included."""

    tokens: Phrase
    shortest: int
    row: int | None
    """The row whose table has the phrases; None: the tables of all rows have them."""


class PhraseEntries:
    """The distinct phrases of a batch, numbered in the order of `windows`, and the fewest windows that hold them all.

    Args:
        windows: The phrases; several windows may hold the same phrase.
        num_rows: Rows of the batch.
        stop_ids: Each window is cut before its first token that is one of these ids.

    >>> entries = PhraseEntries([PhraseWindow((7, 8, 9), 2, 0), PhraseWindow((7, 8), 2, 1)], num_rows=2)
    >>> entries.numbers, entries.windows
    ({(7, 8): 0, (7, 8, 9): 1}, [(7, 8, 9)])
    >>> entries.window_slices.tolist(), entries.row_mask.tolist()
    ([[0, 2], [0, 3]], [[True, True], [True, False]])
    """

    numbers: dict[Phrase, int]
    """The number of each phrase, which is its index in the table."""
    windows: list[Phrase]
    """No window is a prefix of another."""
    window_slices: np.ndarray
    """(entries, 2): the index of the window that begins with the entry, and the entry's number of tokens."""
    row_mask: np.ndarray
    """(rows, entries): true where the entry is in the row's table."""

    def __init__(
        self, windows: Iterable[PhraseWindow], num_rows: int, *, stop_ids: frozenset[int] = frozenset()
    ) -> None:
        self.numbers = {}
        owners: list[set[int | None]] = []
        longest: set[Phrase] = set()
        for window, shortest, row in windows:
            tokens = _cut(window, stop_ids)
            for length in range(max(shortest, MIN_PHRASE_TOKENS), len(tokens) + 1):
                number = self.numbers.setdefault(tokens[:length], len(self.numbers))
                if number == len(owners):
                    owners.append(set())
                owners[number].add(row)
                if length == len(tokens):
                    longest.add(tokens)
        self.windows = _without_prefixes(longest)
        self.window_slices = np.zeros((len(self.numbers), 2), np.int64)
        for index, window in enumerate(self.windows):
            for length in range(MIN_PHRASE_TOKENS, len(window) + 1):
                number = self.numbers.get(window[:length])
                if number is not None:
                    self.window_slices[number] = index, length
        self.row_mask = np.zeros((num_rows, len(self.numbers)), bool)
        for number, rows in enumerate(owners):
            for row in rows:
                self.row_mask[slice(None) if row is None else row, number] = True


def _cut(tokens: Phrase, stop_ids: frozenset[int]) -> Phrase:
    if stop_ids.isdisjoint(tokens):
        return tokens
    return tokens[: next(index for index, token in enumerate(tokens) if token in stop_ids)]


def _without_prefixes(phrases: Iterable[Phrase]) -> list[Phrase]:
    """Return the phrases that are not a prefix of another phrase.

    In lexicographic order, a phrase comes directly before the phrases that it is a prefix of.
    """
    ordered = pairwise([*sorted(phrases), ()])
    return [phrase for phrase, following in ordered if following[: len(phrase)] != phrase]


def padded(rows: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    """Return rows of different lengths as one array, padded on the right with `fill`."""
    array = np.full((len(rows), max(map(len, rows), default=0)), fill, np.int64)
    for row, values in zip(array, rows, strict=True):
        row[: len(values)] = values
    return array


def checked_num_successors(num_successors: int) -> int:
    """Return `num_successors`, the largest number of tokens after a phrase in its negatives.

    Raises:
        ValueError: If it is below 1.
    """
    if num_successors < 1:
        raise ValueError(f"num_successors must be at least 1, got {num_successors}; leave out these negatives for 0")
    return num_successors
