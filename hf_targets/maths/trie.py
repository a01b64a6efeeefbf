"""A set of token sequences: the search for them in a text, and which of them begin others."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise


class TokenTrie:
    """A tree of token sequences, which finds all sequences that begin at a position of a text in one walk.

    Args:
        sequences: Sequences of at least one id each, in [0, 2^32).

    >>> trie = TokenTrie([(1, 2), (1, 2, 3), (2, 3)])
    >>> list(trie.matches([1, 2, 1, 2, 3]))
    [(0, 2), (2, 4), (2, 5), (3, 5)]
    >>> trie.longest([1, 2, 1, 2, 3], 2), trie.longest([1, 2], 1)
    (5, None)
    """

    def __init__(self, sequences: Iterable[Sequence[int]] = ()) -> None:
        self._nodes: dict[int, int] = {}  # the child of a node (0 is the root) for a token id, which has 32 bits
        self._is_end = is_end = bytearray(1)
        for sequence in sequences:
            node = 0
            for id_ in sequence:
                node = self._nodes.setdefault(node << 32 | id_, len(is_end))
                if node == len(is_end):
                    is_end.append(False)
            is_end[node] = True

    def matches(self, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each occurrence of a sequence in a text, ordered by start, then by end."""
        find, is_end, length = self._nodes.get, self._is_end, len(tokens)
        for start in range(length):
            node = find(tokens[start])
            position = start + 1
            while node is not None:
                if is_end[node]:
                    yield start, position
                if position == length:
                    break
                node = find(node << 32 | tokens[position])
                position += 1

    def longest(self, tokens: Sequence[int], start: int) -> int | None:
        """Return the end of the longest sequence that begins at `start`; None if no sequence begins there."""
        find, is_end = self._nodes.get, self._is_end
        node, longest = 0, None
        for index in range(start, len(tokens)):
            child = find(node << 32 | tokens[index])
            if child is None:
                break
            node = child
            if is_end[node]:
                longest = index + 1
        return longest

    def longest_matches(self, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the longest sequences from left to right, without overlap."""
        start = 0
        while start < len(tokens):
            end = self.longest(tokens, start)
            if end is not None:
                yield start, end
            start = start + 1 if end is None else end


def longest_beginning_with(sequences: Sequence[bytes] | Sequence[tuple[int, ...]]) -> list[int]:
    """Return for each of distinct sequences the number of a longest one that begins with it, perhaps its own.

    In lexicographic order a sequence comes directly before those that begin with it.

    >>> longest_beginning_with([(1, 2), (3,), (1, 2, 3)])
    [2, 1, 2]
    """
    numbers = list(range(len(sequences)))
    order = sorted(numbers, key=sequences.__getitem__)
    for one, after in reversed(list(pairwise(order))):
        if sequences[after][: len(sequences[one])] == sequences[one]:
            numbers[one] = numbers[after]
    return numbers
