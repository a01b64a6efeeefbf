"""Which phrases have given tokens in them: at their beginning, anywhere, or all of them in a text."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class PhraseLookup:
    """Finds slots of a vocabulary by the tokens of its phrases; each kind of look-up is prepared when first needed.

    Args:
        vocabulary: As it is now; what is added to it later is not found.
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
        """Return the slots of phrases whose first tokens are these."""
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
        """Return the slots of phrases in which these tokens stand next to each other."""
        size = len(tokens)
        if size not in self._ngrams:
            index = defaultdict(set)
            for slot, phrase in self.phrases.items():
                for start in range(len(phrase) - size + 1):
                    index[phrase[start : start + size]].add(slot)
            self._ngrams[size] = dict(index)
        return self._ngrams[size].get(tuple(tokens), set())

    def repeating(self, size: int) -> set[int]:
        """Return the slots of phrases in which some `size` tokens stand twice."""
        if size not in self._repeating:
            self._repeating[size] = {
                slot
                for slot, phrase in self.phrases.items()
                if len(phrase) > size
                and len({phrase[i : i + size] for i in range(len(phrase) - size + 1)}) < len(phrase) - size + 1
            }
        return self._repeating[size]

    def standing_in(self, text: Sequence[int]) -> set[int]:
        """Return the slots of phrases whose tokens all stand next to each other in a text."""
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
        """Return the slots of phrases after which the text would hold one of the sequences that it did not before.

        Args:
            text: The tokens before the phrase.
            sequences: Each one or more tokens.
        """
        found = set()
        for sequence in set(sequences):
            found |= self.containing(sequence)
            for taken in range(1, len(sequence)):  # so many of them are the text's last tokens
                if taken <= len(text) and tuple(text[-taken:]) == sequence[:taken]:
                    found |= self.beginning_with(sequence[taken:])
        return found

    def repeating_ngrams(self, text: Sequence[int], size: int) -> set[int]:
        """Return the slots of phrases after which some `size` tokens would stand twice in the text."""
        before = {tuple(text[start : start + size]) for start in range(len(text) - size + 1)}
        found = self.completing(text, before) | self.repeating(size)
        # the n-grams across the border may repeat each other, or one inside the phrase
        tail = tuple(text[max(0, len(text) - size + 1) :]) if size > 1 else ()
        for slot in self._may_repeat_across(tail, size) - found:
            joined = tail + self.phrases[slot]
            ngrams = [joined[start : start + size] for start in range(len(joined) - size + 1)]
            if len(set(ngrams)) < len(ngrams):
                found.add(slot)
        return found

    def _may_repeat_across(self, tail: tuple[int, ...], size: int) -> set[int]:
        """Return the slots of phrases in which the last token of a text stands, at which an n-gram could repeat."""
        return self.containing(tail[-1:]) if tail else set()
