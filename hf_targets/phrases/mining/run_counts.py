"""Counting the frequent runs of tokens of a corpus, in one piece or shard by shard with the same result."""

from collections.abc import Callable, Iterable, Iterator
from typing import Self

import numpy as np

BREAK = -1
"""Stands in place of a token that no run holds."""
Counts = tuple[np.ndarray, np.ndarray]
"""The keys of distinct runs of one length, ascending, and how often each was found."""


class TokenRuns:
    """The runs of one length, at first of one token, at the positions of a shard's text: those that may be frequent.

    The key of a run of one token is its id. That of a longer run is n * `width` + t, where n is the index of all but
    its last token in the table of frequent runs of one token less, and t is its last token: keys ascend with the ids.

    Args:
        tokens: (time,), with `BREAK` where no run may be.
        width: Above all ids.
    """

    def __init__(self, tokens: np.ndarray, width: int) -> None:
        self.tokens, self.width, self.size = tokens, width, 1
        self.positions = np.flatnonzero(tokens != BREAK)
        self.keys = tokens[self.positions].astype(np.int64)

    @classmethod
    def at(cls, tokens: np.ndarray, width: int, size: int, positions: np.ndarray, keys: np.ndarray) -> Self:
        """Return the runs of `size` tokens that another object has told."""
        runs = cls(tokens[:0], width)
        runs.tokens, runs.size, runs.positions, runs.keys = tokens, size, positions, keys
        return runs

    def counts(self) -> Counts:
        """Return the distinct runs, and how often each is here."""
        return np.unique(self.keys, return_counts=True)

    def extend(self, table: np.ndarray) -> None:
        """Go on to runs of one token more, both of whose shorter parts are frequent.

        Args:
            table: The keys of all frequent runs of the length so far, ascending.
        """
        numbers = np.searchsorted(table, self.keys).clip(max=max(0, len(table) - 1))
        keep = table[numbers] == self.keys if len(table) else np.zeros(len(self.keys), bool)
        positions, numbers = self.positions[keep], numbers[keep]
        both = np.flatnonzero(positions[1:] == positions[:-1] + 1)
        self.positions = positions[both]
        self.keys = numbers[both] * self.width + self.tokens[self.positions + self.size]
        self.size += 1


def merge_counts(parts: Iterable[Counts], min_count: int) -> Counts:
    """Return the keys that were found `min_count` times or more in all parts together, and their counts."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for more_keys, more_counts in parts:
        if len(keys):
            more_counts = np.concatenate([counts, more_counts])
            more_keys, where = np.unique(np.concatenate([keys, more_keys]), return_inverse=True)
            more_counts = np.bincount(where, more_counts, len(more_keys)).astype(np.int64)
        keys, counts = more_keys, more_counts
    keep = counts >= min_count
    return keys[keep], counts[keep]


def frequent_runs(
    count: Callable[[np.ndarray | None], Iterable[Counts]], *, min_count: int, max_tokens: int, width: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for 2, 3, ... tokens the frequent runs, (runs, tokens) in the order of their ids, and their counts.

    Args:
        count: Called with None, then with the table of each length, for all shards to `extend` their `TokenRuns` by;
            gives the `counts` of each.
    """
    table, _ = merge_counts(count(None), min_count)
    runs = table[:, None]
    while len(table) and runs.shape[1] < max_tokens:
        table, counts = merge_counts(count(table), min_count)
        runs = np.concatenate([runs[table // width], table[:, None] % width], axis=1)
        if len(table):
            yield runs, counts
