"""Where a row has its source and its target: under two languages, or in two columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, List, Value

from hf_targets.data.references import PAIR_FEATURES, REFERENCES, data_set_of, is_target
from hf_targets.data.texts import check_letters
from hf_targets.data.token_rows import texts_of

TRANSLATION = "translation"
"""The column of the Hub's translation data sets: a text for each language."""


def pair_batches(pairs: Dataset, missing: str | None = None) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the sources and the targets of pairs in lists of `ROWS_AT_ONCE`.

    Args:
        missing: What stands for None.
    Raises:
        ValueError: If a column is missing, a side of a pair is no text, or `pairs` is no data set, such as all splits
            at once.
    """
    check_pairs(pairs)
    batches = texts_of(pairs, "source", "target", removable="pairs with filter_pairs", missing=missing)
    yield from cast(Iterator[tuple[list[str], list[str]]], batches)


def check_pairs(pairs: Dataset) -> None:
    """Check that there is a data set with the columns of pairs.

    Raises:
        ValueError: If a column is missing, or `pairs` is no data set, such as all splits at once.
    """
    if not isinstance(pairs, Dataset):
        raise ValueError(f"pairs must be one split, a datasets.Dataset, got {type(pairs).__name__}; give one split")
    if absent := {"source", "target"} - set(pairs.column_names):
        raise ValueError(
            f"pairs need the columns source and target, and {sorted(absent)} is not among {pairs.column_names}; "
            f"load them with load_pairs, or rename columns"
        )


@dataclass(frozen=True)
class PairColumns:
    """The two languages of pairs, and the two columns if rows have them under other names.

    Raises:
        ValueError: If only one column is named, or both sides are the same.
    """

    source_lang: str
    target_lang: str
    source_column: str | None = None
    target_column: str | None = None

    def __post_init__(self) -> None:
        if (self.source_column is None) != (self.target_column is None):
            raise ValueError(
                f"source_column and target_column are named together or not at all, got {self.source_column!r} and "
                f"{self.target_column!r}"
            )
        if len(set(self.sides)) < 2:
            raise ValueError(f"source and target must be two languages or two columns, got {self.sides[0]!r} twice")

    @property
    def named(self) -> bool:
        """Whether the caller named two columns."""
        return self.source_column is not None

    @property
    def sides(self) -> tuple[str, str]:
        """The two columns if they are named, else the two languages."""
        if self.source_column is not None and self.target_column is not None:
            return self.source_column, self.target_column
        return self.source_lang, self.target_lang

    def of_record(self, record: Any, where: str) -> tuple[str, str | list[str]]:
        """Return the source and the target of one row, or the list of its targets.

        Args:
            record: A mapping with the two columns, with `translation`, or with a column for each language.
            where: What the error begins with.
        Raises:
            ValueError: If a side is missing or no text, and the target no list of texts either.
        """
        if not isinstance(record, Mapping):
            raise ValueError(f"{where} must be a mapping of columns, got {record!r:.60}; write one for each pair")
        texts = record if self.named else record.get(TRANSLATION, record)
        if not isinstance(texts, Mapping):
            raise ValueError(f"{where}: {TRANSLATION} must map languages to texts, got {texts!r:.60}")
        self._check_known(list(texts), where)
        source, target = (texts[side] for side in self.sides)
        if self.sides[1] == "target":
            target = texts.get(REFERENCES) or target
        if not isinstance(source, str) or not is_target(target):
            raise ValueError(
                f"{where} must have two texts, or a text and a list of texts, got {source!r:.60} and {target!r:.60}; "
                "remove that row"
            )
        for text in (source, *([target] if isinstance(target, str) else target)):
            check_letters(text, where)
        return source, target

    def of_data_set(self, rows: Dataset, where: str) -> Dataset:
        """Return a data set with the columns `source` and `target`, without a copy of the texts; null is "".

        Where the target is a column of lists, or a column `references` stands beside `target`, as `load_pairs` returns
        them, all texts of a list are in the column `references`; these texts are copied.

        Raises:
            ValueError: If a side is missing or no column of texts, or a list has none.
        """
        prefix = "" if self.named or TRANSLATION not in rows.column_names else f"{TRANSLATION}."
        flat = rows.flatten() if prefix else rows
        self._check_known([name.removeprefix(prefix) for name in flat.column_names if name.startswith(prefix)], where)
        source, target = (f"{prefix}{side}" for side in self.sides)
        beside = target == "target" and _is_list(flat.features.get(REFERENCES))
        has_lists = beside or _is_list(flat.features[target])
        for column in (source, *([] if has_lists else [target])):
            if not _is_text(flat.features[column]):
                raise ValueError(
                    f"{where}: {column} must be a column of texts, got {flat.features[column]}; name another column"
                )
        if has_lists:
            flat = flat.with_format(None)
            targets = flat[target][:]
            if beside:
                targets = [several or one for several, one in zip(flat[REFERENCES][:], targets, strict=True)]
            if bad := [row for row, texts in enumerate(targets) if not is_target(texts)]:
                raise ValueError(
                    f"{where}: {target} must have a text in each row, got {targets[bad[0]]} in row {bad[0]}"
                )
            return data_set_of([(text or "", texts) for text, texts in zip(flat[source][:], targets, strict=True)])
        pairs = flat.select_columns([source, target]).rename_columns({source: "source", target: "target"})
        if any(pairs.data.column(side).null_count for side in ("source", "target")):
            table = pairs.with_format("arrow")[:]
            filled = {side: pc.fill_null(table[side], "") for side in ("source", "target")}
            pairs = Dataset(pa.table(filled))
        return pairs if pairs.features == PAIR_FEATURES else pairs.cast(PAIR_FEATURES)

    def _check_known(self, there: Sequence[str], where: str) -> None:
        """Check that both sides are among the columns or languages that are there."""
        missing = [side for side in self.sides if side not in there]
        if missing:
            kind = "column" if self.named else "language"
            raise ValueError(
                f"{where} has no {kind} {' and '.join(map(repr, missing))}; it has {list(there)}: give two of these as "
                f"{'source_column and target_column' if self.named else 'source_lang and target_lang'}"
                + ("" if self.named else ", or name two columns with source_column and target_column")
            )


def _is_text(feature: Any) -> bool:
    return isinstance(feature, Value) and feature.dtype in ("string", "large_string")


def _is_list(feature: Any) -> bool:
    return isinstance(feature, List) and _is_text(feature.feature)
