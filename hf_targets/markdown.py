"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, num_names: int = 1) -> str:
    """Return a table; the first `num_names` columns hold names and are left-aligned, the others hold numbers.

    >>> print(markdown_table(["model", "x"], [["plain", "1.00"], ["ours", "0.97"]]))
    | model | x |
    | --- | ---: |
    | plain | 1.00 |
    | ours | 0.97 |
    """
    alignment = ["---"] * num_names + ["---:"] * (len(columns) - num_names)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, alignment, *rows))
