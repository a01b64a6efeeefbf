"""A set of phrases with an id each, and the conversion between sequences with phrase ids and sequences of tokens."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import index
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from hf_targets.maths.trie import TokenTrie
from hf_targets.phrases.vocabulary.sources import PhraseSource, SourceTable

_Item = TypeVar("_Item")
TokenIds = Sequence[int] | np.ndarray | Tensor


class PhraseStore:
    """A set of phrases to which phrases can be added, and from which they can be removed.

    A phrase has two tokens or more, and its id is `vocab_size` or more. The id of a removed phrase is never used again:
    if the same phrase is added again, it gets a new id. Several threads may add phrases, and others read them.

    >>> table = PhraseStore(vocab_size=100)
    >>> table.add_token_ids([[5, 6], [5, 6, 7]])
    [100, 101]
    >>> table.merge_phrases([4, 5, 6, 7, 5, 6])
    [4, 101, 100]
    >>> table.expand([4, 101, 100])
    [4, 5, 6, 7, 5, 6]
    """

    def __init__(self, vocab_size: int, special_ids: Iterable[int] = ()) -> None:
        """Make an empty set; `vocab_size` is the id of the first phrase, and `special_ids` are in no phrase."""
        self.vocab_size = vocab_size
        self._special_ids = frozenset(special_ids)
        self._flat, self._offsets, self._alive = array("q"), array("q", [0]), bytearray()
        self._ids: dict[bytes, int] = {}  # by the tokens as `phrase_key` has them; without removed phrases
        self._sources = SourceTable()
        self._lock = RLock()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle has: a set of its own, as it is now."""
        with self._lock:
            own = {"_flat": self._flat[:], "_offsets": self._offsets[:], "_alive": self._alive[:]}
            own |= {"_ids": dict(self._ids), "_sources": self._sources.copy()}
            return {name: own.get(name, value) for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=RLock())

    def add_token_ids(
        self, phrases: Iterable[TokenIds], *, sources: Iterable[Iterable[PhraseSource]] | None = None
    ) -> list[int]:
        """Add phrases, and return their ids in order.

        A phrase that is in the set already keeps its id, and the new sources are added to its sources.

        Args:
            phrases: The token ids of each phrase.
            sources: The sources of each phrase; None: none.
        Raises:
            ValueError: If a phrase has fewer than two tokens, a special token, or a token id outside [0, vocab_size),
                or if there are not as many lists of sources as phrases. Nothing is added in this case.
        """
        checked = [self._checked(phrase) for phrase in several(phrases, "phrases")]
        origins = one_for_each(sources, len(checked))
        with self._lock:
            ids = self._add(map(phrase_key, checked))
            self._sources.add_each(ids, origins)
        return ids

    def _add(self, keys: Iterable[bytes]) -> list[int]:
        """Add phrases that have been checked, by their keys, and return their ids in order; the caller has the lock."""
        self._forget()  # readers of the arrays wait until all phrases are there
        known = self._ids
        return [known[key] if key in known else self._append(key, is_alive=True) for key in keys]

    def remove(self, ids: TokenIds) -> None:
        """Remove phrases by their ids, which are never used again. Nothing is removed if one of them is no phrase."""
        with self._lock:
            phrases = {id_: self.token_ids(id_) for id_ in integers(ids)}
            self._forget()
            self._sources.remove(phrases)
            for id_, phrase in phrases.items():
                self._alive[id_ - self.vocab_size] = False
                del self._ids[phrase_key(phrase)]

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return (slot + self.vocab_size for slot, is_alive in enumerate(self._alive) if is_alive)

    def __contains__(self, phrase_id: int) -> bool:
        slot = index(phrase_id) - self.vocab_size
        return 0 <= slot < self.num_ids and bool(self._alive[slot])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} phrases, vocab_size={self.vocab_size}, num_ids={self.num_ids})"

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that no phrase may contain."""
        return self._special_ids

    @property
    def num_ids(self) -> int:
        """The number of phrase ids so far, with those of removed phrases: the rows of an embedding table."""
        return len(self._alive)

    def token_ids(self, phrase_id: int) -> tuple[int, ...]:
        """Return the tokens of a phrase; ValueError if no phrase has this id, or its phrase was removed."""
        slot = index(phrase_id) - self.vocab_size
        if not 0 <= slot < self.num_ids:
            raise ValueError(
                f"ids must be tokens in [0, {self.vocab_size}) or phrases in [{self.vocab_size}, "
                f"{self.vocab_size + self.num_ids}), got {phrase_id}; use the vocabulary that the id comes from"
            )
        if not self._alive[slot]:
            raise ValueError(f"phrase {phrase_id} was removed; decode texts before their phrases are removed")
        return tuple(self._flat[self._offsets[slot] : self._offsets[slot + 1]])

    def sources(self, phrase_id: int) -> tuple[PhraseSource, ...]:
        """Return the sources that were given for a phrase; ValueError as for `token_ids`."""
        self.token_ids(phrase_id)
        with self._lock:
            return self._sources.of(index(phrase_id))

    def find(self, token_ids: TokenIds) -> int | None:
        """Return the id of the phrase with these tokens, or None."""
        return self._ids.get(phrase_key(integers(token_ids)))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all phrases, removed ones included, as read-only arrays, kept until the set changes.

        Returns: The tokens of all phrases, one phrase after the other (int64); the `num_ids + 1` offsets into them, at
            which a phrase begins or the last phrase ends (int64); and for each phrase false if it was removed (bool).
        """
        if (arrays := self._arrays) is not None:
            return arrays
        with self._lock:  # no phrase is added while the memory is copied
            arrays = (
                np.array(self._flat, np.int64),
                np.array(self._offsets, np.int64),
                np.array(self._alive, np.bool_),
            )
            for values in arrays:
                values.setflags(write=False)
            self._arrays = arrays
        return arrays

    def keys(self) -> list[bytes]:
        """Return the `phrase_key` of each slot, removed phrases included."""
        tokens, offsets, _ = self.arrays()
        data, edges = tokens.tobytes(), (offsets * tokens.itemsize).tolist()
        return [data[first:stop] for first, stop in pairwise(edges)]

    def keys_by_document(self) -> list[list[bytes]]:
        """Return the `phrase_key`s of each document's phrases, sorted, then those of phrases without a source."""
        with self._lock:
            (_, _, alive), keys, found = self.arrays(), self.keys(), self._sources.by_document()
        rest = np.setdiff1d(np.flatnonzero(alive) + self.vocab_size, np.concatenate([[0], *found]))
        slots = [(np.unique(ids) - self.vocab_size).tolist() for ids in (*found, rest) if len(ids)]
        return [sorted(keys[slot] for slot in some) for some in slots]

    def expand(self, ids: TokenIds) -> list[int]:
        """Return `ids` with each phrase replaced by its tokens; ValueError if an id is neither token nor phrase."""
        expanded = []
        for id_ in integers(ids):
            if 0 <= id_ < self.vocab_size:
                expanded.append(id_)
            else:
                expanded.extend(self.token_ids(id_))
        return expanded

    def merge_phrases(self, token_ids: TokenIds) -> list[int]:
        """Return `token_ids` with tokens replaced by phrases: from left to right, always by the longest phrase."""
        if (trie := self._trie) is None:
            with self._lock:
                trie = self._trie = TokenTrie(map(self.token_ids, self))
        tokens = tuple(integers(token_ids))
        merged, done = [], 0
        for start, end in trie.longest_matches(tokens):
            merged += [*tokens[done:start], self._ids[phrase_key(tokens[start:end])]]
            done = end
        return [*merged, *tokens[done:]]

    def _append(self, key: bytes, *, is_alive: bool) -> int:
        self._flat.frombytes(key)
        self._offsets.append(len(self._flat))
        self._alive.append(is_alive)
        id_ = self.vocab_size + self.num_ids - 1
        if is_alive:
            self._ids[key] = id_
        return id_

    def _forget(self) -> None:
        """Drop the values that were derived from the phrases, since the phrases changed."""
        self._arrays: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._trie: TokenTrie | None = None

    def _checked(self, phrase: TokenIds) -> tuple[int, ...]:
        tokens = tuple(integers(phrase))
        if len(tokens) < 2:
            raise ValueError(f"a phrase must have two tokens or more, got {list(tokens)}; leave it out")
        if not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
            raise ValueError(
                f"the tokens of a phrase must be in [0, {self.vocab_size}), got {list(tokens)}; use the tokenizer of "
                "this vocabulary"
            )
        if not self._special_ids.isdisjoint(tokens):
            raise ValueError(
                f"a phrase must have no special token, got {list(tokens)}; leave it out, or cut it at that token"
            )
        return tokens


def phrase_key(tokens: Sequence[int]) -> bytes:
    """Return the tokens of a phrase as the bytes of 64-bit integers, a key that the garbage collector passes over."""
    return array("q", tokens).tobytes()


def integers(ids: TokenIds) -> list[int]:
    """Return ids in one dimension as a list; ValueError if they are something else, such as a batch."""
    try:
        return list(map(index, ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids))
    except TypeError as error:
        raise ValueError(f"ids must be integers in one dimension, such as a row of a batch, got {ids!r:.80}") from error


def several(items: Iterable[_Item], name: str) -> list[_Item]:
    """Return items as a list; ValueError if they are a single string."""
    if isinstance(items, str):
        raise ValueError(f"{name} must be a list or another iterable, got the string {items!r:.80}; put it in a list")
    return list(items)


def one_for_each(sources: Iterable[Iterable[PhraseSource]] | None, num_phrases: int) -> list[tuple[PhraseSource, ...]]:
    """Return the sources of each phrase; without `sources`, no phrase has a source."""
    found = [()] * num_phrases if sources is None else [tuple(map(PhraseSource._make, each)) for each in sources]
    if len(found) != num_phrases:
        raise ValueError(f"sources must have an item for each of {num_phrases} phrases, got {len(found)}")
    return found
