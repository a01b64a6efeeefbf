"""Texts in which spans of tokens are phrases, and the table of phrases of a batch: prefixes of windows."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from hf_targets.maths.trie import longest_beginning_with

Phrase = tuple[int, ...]
MIN_PHRASE_TOKENS = 2  # the static vocabulary has the single tokens


class PhrasedText(NamedTuple):
    """A text in static tokens, and the spans [start, end) of tokens that are phrases, in order and disjoint."""

    tokens: Phrase
    spans: list[tuple[int, int]]

    @property
    def phrases(self) -> list[Phrase]:
        """The phrase of each span."""
        return [self.tokens[start:end] for start, end in self.spans]

    def pieces(self) -> list[tuple[int, int]]:
        """Return the span [start, end) of static tokens at each position of the interleaved sequence.

        >>> PhrasedText((5, 6, 7, 8), [(1, 3)]).pieces()
        [(0, 1), (1, 3), (3, 4)]
        """
        pieces, done = [], 0
        for start, end in [*self.spans, (len(self.tokens), len(self.tokens))]:
            pieces += [(position, position + 1) for position in range(done, start)]
            pieces += [(start, end)] if start < end else []
            done = end
        return pieces


def choose_spans(
    candidates: np.ndarray, *, min_gap: int, phrase_rate: float, generator: torch.Generator | None = None
) -> list[tuple[int, int]]:
    """Return the candidates that become phrases, chosen from left to right.

    At each position where candidates start, one of them becomes a phrase with probability `phrase_rate`; all that start
    there are equally likely. The next `min_gap` tokens after a phrase stay plain. If candidates start at every token,
    the gap between two phrases is `min_gap` plus a geometric number of tokens, with the mean (1 - rate) / rate. The
    first token of a text is never in a phrase, since no position predicts it.

    Args:
        candidates: (spans, 2), spans [start, end) of tokens, sorted and distinct.
        min_gap: The smallest number of plain tokens between two phrases.
        phrase_rate: A probability, in [0, 1].
        generator: Makes the choice; None: torch's global one.
    Source: Liu et al. 2024, section 2.4: random sequences of words, at least five tokens apart. It gives no rate.
    """
    starts, firsts, counts = np.unique(candidates[:, 0], return_index=True, return_counts=True)
    takes, picks = torch.rand(2, len(starts), generator=generator).numpy()
    ends = candidates[firsts + (picks.astype(float) * counts).astype(int), 1]
    chosen, free_from = [], 1
    for start, end, take in zip(starts.tolist(), ends.tolist(), takes.tolist(), strict=True):
        if start >= free_from and take < phrase_rate:
            chosen.append((start, end))
            free_from = end + min_gap
    return chosen


def usable_spans(candidates: np.ndarray, barred: np.ndarray, max_tokens: int | None) -> np.ndarray:
    """Return the candidates with at most `max_tokens` tokens and without barred tokens.

    Args:
        candidates: (spans, 2), the spans [start, end) of tokens that a miner found.
        barred: (tokens,), true at tokens that must not be in a phrase.
        max_tokens: None: no limit.
    Raises:
        ValueError: If the candidates are not sorted spans of at least two tokens inside the text.
    """
    starts, ends = candidates[:, 0], candidates[:, 1]
    lengths = ends - starts
    is_wrong = (starts < 0) | (ends > len(barred)) | (lengths < MIN_PHRASE_TOKENS)
    is_wrong[1:] |= (starts[1:] < starts[:-1]) | ((starts[1:] == starts[:-1]) & (ends[1:] <= ends[:-1]))
    if is_wrong.any():
        raise ValueError(
            f"a miner's spans must be sorted and distinct, of {MIN_PHRASE_TOKENS} tokens or more, inside the "
            f"{len(barred)} tokens, got {candidates[is_wrong][0].tolist()}"
        )
    num_barred = np.concatenate([[0], np.cumsum(barred)])
    keep = num_barred[ends] == num_barred[starts]
    if max_tokens is not None:
        keep &= lengths <= max_tokens
    return candidates[keep]


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
        marks: list[tuple[int | slice, int]] = []
        for window, shortest, row in windows:
            tokens = _cut(window, stop_ids)
            for length in range(max(shortest, MIN_PHRASE_TOKENS), len(tokens) + 1):
                number = self.numbers.setdefault(tokens[:length], len(self.numbers))
                marks.append((slice(None) if row is None else row, number))
        phrases = list(self.numbers)
        longest = [phrases[number] for number in longest_beginning_with(phrases)]
        self.windows = sorted(set(longest))
        index = {window: number for number, window in enumerate(self.windows)}
        slices = [(index[window], len(phrase)) for phrase, window in zip(phrases, longest, strict=True)]
        self.window_slices = np.array(slices, np.int64).reshape(-1, 2)
        self.row_mask = np.zeros((num_rows, len(phrases)), bool)
        for rows, number in marks:
            self.row_mask[rows, number] = True


def _cut(tokens: Phrase, stop_ids: frozenset[int]) -> Phrase:
    if stop_ids.isdisjoint(tokens):
        return tokens
    return tokens[: next(index for index, token in enumerate(tokens) if token in stop_ids)]


def padded(rows: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    """Return rows of different lengths as one array, padded on the right with `fill`."""
    array = np.full((len(rows), max(map(len, rows), default=0)), fill, np.int64)
    for row, values in zip(array, rows, strict=True):
        row[: len(values)] = values
    return array
