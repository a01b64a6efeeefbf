"""Search for phrases by their tokens: phrases that begin with or contain given tokens, or that occur in a text."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class PhraseLookup:
    """An index of a vocabulary's slots by the tokens of their phrases. Each kind of look-up is built at its first use.

    Args:
        vocabulary: The vocabulary. Phrases that are added to it later are not found.
    """

    def __init__(self, vocabulary: PhraseVocabulary) -> None:
        ids, offsets, alive = vocabulary.arrays()
        ends = offsets.tolist()
        flat = ids.tolist()
        self.phrases = {slot: tuple(flat[ends[slot] : ends[slot + 1]]) for slot in np.flatnonzero(alive).tolist()}
        self._sorted: list[tuple[tuple[int, ...], int]] | None = None
        self._slots: dict[tuple[int, ...], int] | None = None
        self._ngrams: dict[int, dict[tuple[int, ...], set[int]]] = {}
        self._repeating: dict[int, set[int]] = {}

    def beginning_with(self, tokens: Sequence[int]) -> set[int]:
        """Return the slots of phrases that begin with these tokens."""
        if self._sorted is None:
            self._sorted = sorted((phrase, slot) for slot, phrase in self.phrases.items())
        first = tuple(tokens)
        position = bisect_left(self._sorted, (first, -1))
        found = set()
        while position < len(self._sorted) and self._sorted[position][0][: len(first)] == first:
            found.add(self._sorted[position][1])
            position += 1
        return found

    def containing(self, tokens: Sequence[int]) -> set[int]:
        """Return the slots of phrases that contain these tokens next to each other, in this order."""
        size = len(tokens)
        if size not in self._ngrams:
            index = defaultdict(set)
            for slot, phrase in self.phrases.items():
                for start in range(len(phrase) - size + 1):
                    index[phrase[start : start + size]].add(slot)
            self._ngrams[size] = dict(index)
        return self._ngrams[size].get(tuple(tokens), set())

    def repeating(self, size: int) -> set[int]:
        """Return the slots of phrases that contain an n-gram of `size` tokens twice."""
        if size not in self._repeating:
            self._repeating[size] = {
                slot
                for slot, phrase in self.phrases.items()
                if len(phrase) > size
                and len({phrase[i : i + size] for i in range(len(phrase) - size + 1)}) < len(phrase) - size + 1
            }
        return self._repeating[size]

    def standing_in(self, text: Sequence[int]) -> set[int]:
        """Return the slots of phrases that occur in a text, given as tokens."""
        if self._slots is None:
            self._slots = {phrase: slot for slot, phrase in self.phrases.items()}
        lengths = {len(phrase) for phrase in self._slots}
        found = set()
        for size in lengths:
            for start in range(len(text) - size + 1):
                slot = self._slots.get(tuple(text[start : start + size]))
                if slot is not None:
                    found.add(slot)
        return found

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
        # an n-gram that spans text and phrase may equal another such n-gram, or an n-gram inside the phrase
        tail = tuple(text[max(0, len(text) - size + 1) :]) if size > 1 else ()
        for slot in self._may_repeat_across(tail, size) - found:
            joined = tail + self.phrases[slot]
            ngrams = [joined[start : start + size] for start in range(len(joined) - size + 1)]
            if len(set(ngrams)) < len(ngrams):
                found.add(slot)
        return found

    def _may_repeat_across(self, tail: tuple[int, ...], size: int) -> set[int]:
        """Return the slots of phrases that contain the last token of `tail`, as only they can repeat an n-gram."""
        return self.containing(tail[-1:]) if tail else set()
