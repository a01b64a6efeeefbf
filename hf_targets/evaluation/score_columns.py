"""Measured columns of several models and seeds as tables: means with standard errors, and which differences are any."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

from hf_targets.markdown import markdown_table
from hf_targets.maths.statistics import format_difference, format_mean

_UNITS = {
    **dict.fromkeys(("mauve", "rep_2", "rep_3", "rep_4", "diversity", "phrase_share"), "%"),
    **dict.fromkeys(("latency", "latency_median", "latency_p95", "phrase_latency"), "s"),
    "nsl": "steps",
    **dict.fromkeys(("citation_recall", "citation_precision", "citation_recall_own", "citation_precision_own"), "%"),
    **dict.fromkeys(("lexical_recall", "lexical_precision", "lexical_recall_own", "lexical_precision_own"), "%"),
    **dict.fromkeys(("str_em", "qa_em", "qa_f1", "rouge_l"), "%"),
    **dict.fromkeys(("from_documents", "markers_of_phrases", "right_markers"), "%"),
    **dict.fromkeys(("seconds", "phrase_seconds"), "s"),
}
"""Of columns that are no plain number."""


def format_columns(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return measured columns as a Markdown table with a row per model: means over seeds, with their standard errors.

    Args:
        rows: For each model, by name, the columns of each seed.

    >>> print(format_columns({"plain": [{"nsl": 4.0}, {"nsl": 6.0}], "ours": [{"nsl": 3.0, "mauve": 1.0}]}))
    | model | nsl, steps | mauve, % |
    | --- | ---: | ---: |
    | plain | 5.00 ± 1.00 |  |
    | ours | 3.00 | 1.00 |
    """
    return _table(rows, {model: partial(_mean, seeds) for model, seeds in rows.items()})


def format_column_differences(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the difference of each model's columns from the first model's, as a Markdown table; "" for one model.

    A difference below two standard errors is printed as none (`maths.statistics.format_difference`).

    >>> print(format_column_differences({"plain": [{"nsl": 4.0}, {"nsl": 6.0}], "ours": [{"nsl": 3.0}, {"nsl": 3.0}]}))
    | against plain | nsl, steps |
    | --- | ---: |
    | ours | -2.00 ± 1.00 |
    """
    first, *others = rows
    if not others:
        return ""
    cells = {model: partial(_difference, rows[model], rows[first]) for model in others}
    return _table(rows, cells, f"against {first}")


def _mean(seeds: Sequence[Mapping[str, float]], name: str) -> str:
    return format_mean([columns.get(name) for columns in seeds])


def _difference(seeds: Sequence[Mapping[str, float]], reference: Sequence[Mapping[str, float]], name: str) -> str:
    values, reference_values = ([columns[name] for columns in rows if name in columns] for rows in (seeds, reference))
    return format_difference(values, reference_values) if values and reference_values else ""


def _table(
    rows: Mapping[str, Sequence[Mapping[str, float]]],
    cell_of: Mapping[str, Callable[[str], str]],
    corner: str = "model",
) -> str:
    names = list(dict.fromkeys(chain.from_iterable(chain.from_iterable(rows.values()))))
    heading = [f"{name}, {_UNITS[name]}" if name in _UNITS else name for name in names]
    return markdown_table([corner, *heading], [[model, *map(cell, names)] for model, cell in cell_of.items()])
