"""A text cut into documents, for phrases to come from."""

from collections.abc import Iterable


def documents_of(rows: Iterable[str], num_words: int = 100) -> dict[str, str]:
    """Return consecutive rows joined into documents of about `num_words` words, by their number; none is empty.

    Args:
        rows: Paragraphs or lines of one text.
        num_words: White-space words at which a document ends, at the end of a row; 1 or more.
    Raises:
        ValueError: If `num_words` is below 1, or `rows` is one text.

    >>> documents_of(["one two\\n", "\\n", "three\\n", "four\\n"], num_words=3)
    {'0': 'one two\\n\\nthree\\n', '1': 'four\\n'}
    """
    if isinstance(rows, str):
        raise ValueError(f"rows must be several texts, got the text {rows[:40]!r}; put it in a list")
    if num_words < 1:
        raise ValueError(f"num_words must be 1 or more, got {num_words}")
    documents, parts, words = {}, [], 0
    for row in rows:
        parts.append(row)
        words += len(row.split())
        if words >= num_words:
            documents[str(len(documents))] = "".join(parts)
            parts, words = [], 0
    if words:
        documents[str(len(documents))] = "".join(parts)
    return documents
