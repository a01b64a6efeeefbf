"""Confidence intervals of what texts after the same prefixes measure, by resampling the prefixes."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hf_targets.evaluation.continuations import Continuations
from hf_targets.evaluation.intervals import bootstrap_interval
from hf_targets.evaluation.repetition import ORDERS, Text, repeated_ngrams
from lab.tables import markdown_table

_Means = np.ndarray
"""Of a set of texts, (..., 5): rep-2 to rep-4, steps, phrases."""
_COLUMNS: dict[str, Callable[[_Means], np.ndarray]] = {
    "diversity, %": lambda means: 100 * (1 - means[..., :3] / 100).prod(axis=-1),
    "steps": lambda means: means[..., 3],
    "phrase_share, %": lambda means: 100 * means[..., 4] / means[..., 3],
}


def format_intervals(
    rows: Mapping[str, Sequence[Continuations]],
    units: Mapping[str, Sequence[Sequence[Text]]] | None = None,
    *,
    confidence: float = 0.95,
) -> str:
    """Return intervals of each model's columns, and of their differences from the first model's, as a Markdown table.

    Prefixes are resampled, each with the texts of all models and seeds, so that a hard prefix is hard for all. A
    difference whose interval contains 0 is printed as none. Latencies have none, as the rows of a batch share its time.

    Args:
        rows: For each model, by name, the continuations of each seed, all after the same prefixes in the same order.
        units: Likewise, of each text what repetition counts, `repetition_units`. None: the tokens of `rows`.
    Raises:
        ValueError: If models or seeds continued different numbers of prefixes.
    Returns: A sentence in place of the table if there is one prefix alone.
    """
    counts = {len(continued.tokens) for seeds in rows.values() for continued in seeds}
    if len(counts) != 1:
        raise ValueError(f"all models must continue the same prefixes, got {', '.join(map(str, sorted(counts)))} texts")
    (count,) = counts
    if count < 2:
        return "One prefix has no interval."
    units = units or {model: [continued.tokens for continued in seeds] for model, seeds in rows.items()}
    of_texts = {model: np.mean(list(map(_values, seeds, units[model])), axis=0) for model, seeds in rows.items()}
    first = next(iter(of_texts.values()))

    def interval(column: Callable[[_Means], np.ndarray], values: np.ndarray, reference: np.ndarray | None) -> str:
        def statistic(numbers: np.ndarray) -> np.ndarray:
            found = column(np.nanmean(values[numbers], axis=-2))
            return found if reference is None else found - column(np.nanmean(reference[numbers], axis=-2))

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Mean of empty slice|The BCa conf", RuntimeWarning)  # told below
            low, high = bootstrap_interval(statistic, count, confidence=confidence)
        if np.isnan(low) or np.isnan(high):  # in some samples no text is long enough
            return "too few texts"
        if reference is None:
            return f"{low:.2f} to {high:.2f}"
        told = f"{low:+.2f} to {high:+.2f}"
        return f"none ({told})" if low <= 0 <= high else told

    lines = [
        [model, *(interval(column, values, None) for column in _COLUMNS.values())] for model, values in of_texts.items()
    ]
    for model, values in list(of_texts.items())[1:]:
        lines.append([f"{model} - first", *(interval(column, values, first) for column in _COLUMNS.values())])
    return markdown_table(["model", *_COLUMNS], lines)


def _values(continued: Continuations, units: Sequence[Text]) -> np.ndarray:
    """Return the values of each text, (texts, 5), whose means are `_Means`; NaN for a text too short for an n-gram."""
    repeated = [
        [repeated_ngrams([text], order) if len(text) >= order else np.nan for order in ORDERS] for text in units
    ]
    columns = zip(repeated, continued.num_steps, continued.num_phrases, strict=True)
    return np.array([[*reps, steps, phrases] for reps, steps, phrases in columns])
