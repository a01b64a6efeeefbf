"""Search for phrases by their tokens: phrases that begin with or contain given tokens, or that occur in a text."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from hf_targets.phrases.vocabulary.store import phrase_key
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary

_BYTES = len(phrase_key([0]))  # of a token


class PhraseLookup:
    """An index of a vocabulary's slots by the n-grams of their phrases, made for each n at its first use.

    Phrases that are added to the vocabulary later are not found.
    """

    def __init__(self, vocabulary: PhraseVocabulary) -> None:
        is_alive = vocabulary.arrays()[2].tolist()
        self._phrases = {slot: phrase for slot, phrase in enumerate(vocabulary.keys()) if is_alive[slot]}
        self._slot_of = {phrase: slot for slot, phrase in self._phrases.items()}
        self._containing: dict[int, dict[bytes, set[int]]] = {}  # by the number of tokens
        self._repeating: dict[int, set[int]] = {}

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
        key = phrase_key(tokens)
        return {slot for slot in self.containing(tokens) if self._phrases[slot].startswith(key)}

    def containing(self, tokens: Sequence[int]) -> set[int]:
        """Return the slots of phrases that contain these tokens next to each other, in this order."""
        if (size := len(tokens)) not in self._containing:
            slots: dict[bytes, set[int]] = defaultdict(set)
            for slot, phrase in self._phrases.items():
                for ngram in _ngrams(phrase, size):
                    slots[ngram].add(slot)
            self._containing[size] = dict(slots)
        return self._containing[size].get(phrase_key(tokens), set())

    def standing_in(self, text: Sequence[int]) -> set[int]:
        """Return the slots of phrases that occur in a text, given as tokens."""
        data, sizes = phrase_key(text), {len(phrase) // _BYTES for phrase in self._slot_of}
        return {self._slot_of[part] for size in sizes for part in _ngrams(data, size) if part in self._slot_of}

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
        found = self.completing(text, {tuple(text[start : start + size]) for start in range(len(text) - size + 1)})
        if size not in self._repeating:
            self._repeating[size] = {slot for slot, phrase in self._phrases.items() if _repeats(phrase, size)}
        found |= self._repeating[size]
        if size > 1 and len(text):  # an n-gram across the border, which has the last token and the first of the phrase
            tail, last = phrase_key(text[1 - size :]), phrase_key(text[-1:])
            pairs = ((slot, self._phrases[slot]) for slot in self.containing(text[-1:]))
            again = ((slot, phrase) for slot, phrase in pairs if last + phrase[:_BYTES] in phrase)
            found |= {slot for slot, phrase in again if _repeats(tail + phrase, size)}
        return found


def _ngrams(data: bytes, size: int) -> list[bytes]:
    """Return the n-grams of `size` tokens of a text, given as its `phrase_key`."""
    return [data[end - size * _BYTES : end] for end in range(size * _BYTES, len(data) + 1, _BYTES)]


def _repeats(data: bytes, size: int) -> bool:
    ngrams = _ngrams(data, size)
    return len(set(ngrams)) < len(ngrams)


_LOOKUPS: WeakKeyDictionary[PhraseVocabulary, tuple[tuple, PhraseLookup]] = WeakKeyDictionary()
"""The index of each vocabulary, with the arrays that it was made from: a vocabulary makes new ones when it changes."""
