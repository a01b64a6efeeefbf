"""The steps from texts to rows of token ids that every maker of rows takes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value

NUM_WORDS = "num_words"
"""Column: how many words begin in the targets of a row."""

ROWS_AT_ONCE = 1000


def text_batches(texts: Dataset) -> Iterator[list[str]]:
    """Yield the rows of the column `text` in lists of `ROWS_AT_ONCE`.

    Raises:
        ValueError: If there is no such column, or a row has no text.
    """
    if not isinstance(texts, Dataset) or "text" not in texts.column_names:
        found = texts.column_names if isinstance(texts, Dataset) else type(texts).__name__
        raise ValueError(f"texts must be one split, a datasets.Dataset with a column text, got {found}")
    yield from (batch for (batch,) in texts_of(texts, "text"))


def texts_of(dataset: Dataset, *columns: str, missing: str | None = None) -> Iterator[tuple[list[str], ...]]:
    """Yield the texts of columns in lists of `ROWS_AT_ONCE`; `missing` stands for None.

    Raises:
        ValueError: If a row has no text.
    """
    rows = dataset.select_columns(list(columns))
    if rows.format["type"] != "custom":  # but for a transform of the user's, formats are of numbers
        rows = rows.with_format(None)
    for number, batch in enumerate(rows.iter(ROWS_AT_ONCE)):
        found = cast(dict[str, list[Any]], batch)
        texts: dict[str, Any] = {name: [missing if text is None else text for text in found[name]] for name in columns}
        for column in columns:
            for row, text in enumerate(texts[column], start=number * ROWS_AT_ONCE):
                if not isinstance(text, str):
                    raise ValueError(f"column {column} must have a text in each row, and row {row} has {text!r:.60}")
        yield tuple(texts[column] for column in columns)


def check_fills_a_block(num_tokens: int, needed: int, why: str = "") -> None:
    """Raise a ValueError if there are fewer tokens than a block needs; `why` tells how `needed` came about."""
    if num_tokens < needed:
        raise ValueError(
            f"a text must fill one block, and {num_tokens} tokens do not fill {needed}{why}; give a longer text or "
            "lower block_size"
        )


def rows_of(columns: Mapping[str, Any]) -> Dataset:
    """Return a data set of integers: a list in each row where a column has lists, else one number."""
    kinds = {name: List(Value("int64")) if np.ndim(rows[0]) else Value("int64") for name, rows in columns.items()}
    return Dataset.from_dict(dict(columns), features=Features(kinds))


def has_value(dataset: Dataset, column: str) -> list[bool]:
    """Return for each row whether it has a value in a column that may be missing; None is no value."""
    if column not in dataset.column_names:
        return [False] * len(dataset)
    batches = dataset.select_columns([column]).with_format("arrow").iter(ROWS_AT_ONCE)
    return [flag for rows in batches for flag in cast(pa.Table, rows)[column].is_valid().to_pylist()]


def sum_of_words(counts: Sequence[int | None]) -> int | None:
    """Return the sum of the `num_words` of all rows; None where no row has it.

    Raises:
        ValueError: If some rows have it and others lack it.

    >>> sum_of_words([2, 3]), sum_of_words([None, None])
    (5, None)
    """
    _check_all_or_none([count is not None for count in counts])
    return sum(int(count) for count in counts if count is not None) if counts and counts[0] is not None else None


def check_words(rows: Any, where: str = "") -> None:
    """Raise a ValueError if some rows have `num_words` and others lack it: their sum would divide the loss of all.

    Args:
        rows: A data set or a list; other kinds are read only once, and are not checked.
        where: What the error begins with.
    """
    if isinstance(rows, Dataset):
        _check_all_or_none(has_value(rows, NUM_WORDS), where)
    elif isinstance(rows, list):
        _check_all_or_none([isinstance(row, Mapping) and row.get(NUM_WORDS) is not None for row in rows], where)


def _check_all_or_none(have_words: list[bool], where: str = "") -> None:
    if any(have_words) and not all(have_words):
        raise ValueError(
            f"{where}either all rows have {NUM_WORDS} or none, and row {have_words.index(False)} lacks it; make all "
            "rows with the same function, or remove the column"
        )
