"""How many different n-grams a text has."""

from collections.abc import Hashable, Iterable, Sequence


def count_ngrams(rows: Iterable[Sequence[Hashable]], order: int) -> int:
    """Return the number of distinct n-grams in rows of tokens; an n-gram lies within one row.

    Args:
        rows: Each row is a list of words or token ids, without special tokens if these are not to count.
        order: n, at least 1.
    Raises:
        ValueError: If `order` is below 1, or a row is a string.
    Source: the number of unigrams and bigrams of each language, which the WDR paper compares at the end of section 4.3.
    Related: `evaluation.repetition.distinct_ngrams` divides it by the number of all n-grams.

    >>> count_ngrams([["a", "b", "a", "b"], ["b", "b"]], order=2)
    3
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, for n-grams of 1 token or more, got {order}")
    found = set()
    for row in [rows] if isinstance(rows, str) else rows:
        if isinstance(row, str):
            raise ValueError(f"rows must be lists of words or token ids, got the text {row!r:.40}; split it first")
        found.update(zip(*(row[start:] for start in range(order)), strict=False))
    return len(found)
