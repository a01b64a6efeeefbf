"""Search for phrases by their tokens: phrases that begin with or contain given tokens, or that occur in a text."""

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary

_MAX_KEPT = 2**14  # answers of `containing`


class PhraseLookup:
    """An index of a vocabulary's slots by the tokens of their phrases. Each kind of look-up is built at its first use.

    The positions of each token in the phrases are sorted once. A sequence is looked for at the positions of its rarest
    token.

    Phrases that are added to the vocabulary later are not found.
    """

    def __init__(self, vocabulary: PhraseVocabulary) -> None:
        self._ids, offsets, alive = vocabulary.arrays()
        self._begins, lengths = offsets[:-1], np.diff(offsets)
        self._slots = np.repeat(np.arange(len(lengths)), lengths)  # of each position in `_ids`
        self._lengths = lengths * alive
        narrow = self._ids.astype(np.min_scalar_type(vocabulary.vocab_size))  # numbers of 16 bits are sorted fastest
        positions = np.argsort(narrow, kind="stable")
        self._positions = positions[alive[self._slots[positions]]]  # by token, without removed phrases
        counts = np.bincount(self._ids[self._positions], minlength=vocabulary.vocab_size)
        self._bounds = np.append(0, np.cumsum(counts))
        self._containing: dict[tuple[int, ...], set[int]] = {}
        self._repeating: dict[int, set[int]] = {}
        self._slot_of: dict[bytes, int] | None = None

    @classmethod
    def of(cls, vocabulary: PhraseVocabulary) -> "PhraseLookup":
        """Return the index of the vocabulary's phrases, made once for each state of the vocabulary."""
        state, lookup = _LOOKUPS.get(vocabulary, (None, None))
        if lookup is None or state is not vocabulary.arrays():
            state, lookup = vocabulary.arrays(), cls(vocabulary)
            _LOOKUPS[vocabulary] = (state, lookup)
        return lookup

    def beginning_with(self, tokens: Sequence[int]) -> set[int]:
        """Return the slots of phrases that begin with these tokens."""
        starts = self._occurrences(tokens)
        slots = self._slots[starts]
        return set(slots[self._begins[slots] == starts].tolist())

    def containing(self, tokens: Sequence[int]) -> set[int]:
        """Return the slots of phrases that contain these tokens next to each other, in this order."""
        key = tuple(tokens)
        if (found := self._containing.get(key)) is None:
            if len(self._containing) >= _MAX_KEPT:
                self._containing.clear()
            found = self._containing[key] = set(self._slots[self._occurrences(key)].tolist())
        return found

    def _range(self, token: int) -> tuple[int, int]:
        """Return the range of a token in `_positions`."""
        if not 0 <= token < len(self._bounds) - 1:
            return 0, 0
        return int(self._bounds[token]), int(self._bounds[token + 1])

    def _occurrences(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the position in `_ids` of each occurrence of tokens inside a phrase."""
        ranges = [self._range(token) for token in tokens]
        rarest = min(range(len(tokens)), key=lambda index: ranges[index][1] - ranges[index][0])
        starts = self._positions[slice(*ranges[rarest])] - rarest
        starts = starts[(starts >= 0) & (starts + len(tokens) <= len(self._ids))]
        starts = starts[self._slots[starts] == self._slots[starts + len(tokens) - 1]]
        for index, token in enumerate(tokens):
            starts = starts[self._ids[starts + index] == token]
        return starts

    def repeating(self, size: int) -> set[int]:
        """Return the slots of phrases that contain an n-gram of `size` tokens twice."""
        if size not in self._repeating:
            found, slots, distance = set(), np.arange(len(self._lengths)), 0
            while len(slots := slots[self._lengths[slots] > size + distance]):
                distance += 1
                counts = self._lengths[slots] - size - distance + 1
                within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
                starts = np.repeat(self._begins[slots], counts) + within
                for index in range(size):
                    starts = starts[self._ids[starts + index] == self._ids[starts + index + distance]]
                found.update(self._slots[starts].tolist())
            self._repeating[size] = found
        return self._repeating[size]

    def standing_in(self, text: Sequence[int]) -> set[int]:
        """Return the slots of phrases that occur in a text, given as tokens."""
        if self._slot_of is None:
            data, ends = self._ids.tobytes(), (self._begins + self._lengths) * 8
            pairs = enumerate(zip((self._begins * 8).tolist(), ends.tolist(), strict=True))
            self._slot_of = {data[first:end]: slot for slot, (first, end) in pairs if first < end}
        data, count = np.asarray(text, np.int64).tobytes(), len(text)
        sizes = np.unique(self._lengths[self._lengths > 0]).tolist()
        windows = (data[8 * start : 8 * (start + size)] for size in sizes for start in range(count - size + 1))
        return {self._slot_of[window] for window in windows if window in self._slot_of}

    def completing(self, text: Sequence[int], sequences: Iterable[tuple[int, ...]]) -> set[int]:
        """Return the slots of phrases that would complete one of the sequences when put after the text.

        Args:
            text: The tokens before the phrase.
            sequences: Sequences of one token or more. A sequence is completed if it ends inside the phrase.
        """
        found = set()
        for sequence in set(sequences):
            found |= self.containing(sequence)
            for taken in range(1, len(sequence)):  # the sequence begins with this many last tokens of the text
                if taken <= len(text) and tuple(text[-taken:]) == sequence[:taken]:
                    found |= self.beginning_with(sequence[taken:])
        return found

    def repeating_ngrams(self, text: Sequence[int], size: int) -> set[int]:
        """Return the slots of phrases that would repeat an n-gram of `size` tokens when put after the text."""
        before = {tuple(text[start : start + size]) for start in range(len(text) - size + 1)}
        found = self.completing(text, before) | self.repeating(size)
        tail = text[max(0, len(text) - size + 1) :] if size > 1 else ()
        return found | (self._repeating_across(tail, size) if len(tail) else set())

    def _repeating_across(self, tail: Sequence[int], size: int) -> set[int]:
        """Return the slots of phrases in which an n-gram that begins in `tail`, and ends in the phrase, comes again.

        The later n-gram has the last token of `tail` inside the phrase. So each position of that token there is a
        distance, at which the tokens around the last one of `tail` are compared.
        """
        places = self._positions[slice(*self._range(tail[-1]))]
        slots, last, before = self._slots[places], len(tail) - 1, np.asarray(tail, np.int64)
        distance = places - self._begins[slots] + 1
        length = len(tail) + self._lengths[slots]

        def tokens(index: np.ndarray | int) -> np.ndarray:
            """Return the token at an index of the tail and the phrase together, for each position."""
            inside = self._begins[slots] + np.clip(index - len(tail), 0, self._lengths[slots] - 1)
            return np.where(index < len(tail), before[np.clip(index, 0, last)], self._ids[inside])

        common = np.ones(len(places), np.int64)
        for steps in (range(last + 1, last + size), range(last - 1, -1, -1)):
            agrees = np.ones(len(places), bool)
            for index in steps:
                agrees &= (index + distance < length) & (tokens(index) == tokens(index + distance))
                common += agrees
        return set(slots[common >= size].tolist())


_LOOKUPS: WeakKeyDictionary[PhraseVocabulary, tuple[tuple, PhraseLookup]] = WeakKeyDictionary()
"""The index of each vocabulary, with the arrays that it was made from: a vocabulary makes new ones when it changes."""
