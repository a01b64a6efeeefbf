"""A set of token sequences, and the search for them in a text."""

from collections.abc import Iterable, Iterator, Sequence


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
