"""Tables of results in Markdown: means over seeds with their standard errors, and which differences are any."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from hf_targets.maths.statistics import mean_and_standard_error, student_margin

Results = Mapping[str, Sequence[Mapping[str, float]]]
"""To each row its results, one a seed, as `lab.runs.compare` returns them."""

PERPLEXITIES = {
    "perplexity": "perplexity",
    "perplexity_ensemble": "with ensemble",
    "ensemble_weight": "lambda",
    "perplexity_temperature": "at best temperature",
    "temperature": "temperature",
    "word_perplexity": "per word",
    "word_perplexity_ensemble": "per word, ensemble",
    "seconds": "training, s",
}
"""Columns of models with heads. Lambda (ensemble weight) and temperature are each seed's best on validation text."""
_CHOSEN = ("ensemble_weight", "temperature")


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


def results_table(results: Results, columns: Mapping[str, str] | None = None, digits: int = 2) -> str:
    """Return a row per model: means over seeds, with standard errors where there are several seeds.

    The columns are names of results with their headings; None: all but those of the validation text.

    >>> print(results_table({"plain": [{"bleu": 4.0}, {"bleu": 6.0}], "ours": [{"bleu": 7.0, "seconds": 3.2}]}))
    | model | bleu | training, s |
    | --- | ---: | ---: |
    | plain | 5.00 ± 1.00 |  |
    | ours | 7.00 | 3 |
    """
    shown = _columns(results, columns)
    lines = [[name, *(_mean(key, seeds, digits) for key in shown)] for name, seeds in results.items()]
    return markdown_table(["model", *shown.values()], lines)


def differences_table(results: Results, columns: Mapping[str, str] | None = None) -> str:
    """Return each row's difference from the first one; below two standard errors it is called none. "" for one row.

    A key `a_ensemble` is compared with `a_temperature` of the first row, or else `a`, where that has no ensemble.

    >>> differences_table({"plain": [{"x": 4.0}, {"x": 6.0}], "ours": [{"x": 3.0}, {"x": 3.0}]}).splitlines()[2]
    '| ours | -2.00 ± 1.00 |'
    """
    (first, reference), *others = results.items()
    if not others:
        return ""
    shown = {key: told for key, told in _columns(results, columns).items() if key not in ("seconds", *_CHOSEN)}
    lines = []
    for name, seeds in others:
        cells = []
        for key in shown:
            keys = [key, key.replace("_ensemble", "_temperature"), key.removesuffix("_ensemble")]
            base = [next((one[name] for name in keys if name in one), None) for one in reference]
            own = [one[key] for one in seeds if one.get(key) is not None]
            known = [value for value in base if value is not None]
            cells.append(format_difference(own, known) if own and known else "")
        lines.append([name, *cells])
    return markdown_table([f"against {first}", *shown.values()], lines)


def intervals_table(results: Results, columns: Mapping[str, str]) -> str:
    """Return 95% intervals of the means over seeds, by Student's t; "" where a row has one seed alone.

    >>> intervals_table({"plain": [{"x": 4.0}, {"x": 6.0}]}, {"x": "x"}).splitlines()[2]
    '| plain | -7.71 to 17.71 |'
    """
    shown, lines = _columns(results, columns), []
    for name, seeds in results.items():
        cells = []
        for key in shown:
            values = [one[key] for one in seeds if key in one]
            mean, error = mean_and_standard_error(values) if values else (0.0, None)
            half = None if error is None else student_margin(error, len(values))
            cells.append("" if half is None else f"{mean - half:.2f} to {mean + half:.2f}")
        lines.append([name, *cells])
    return markdown_table(["95% interval", *shown.values()], lines) if any(any(cells) for _, *cells in lines) else ""


def weights_table(results: Results) -> str:
    """Return test perplexities at every ensemble weight (lambda), means over seeds."""
    prefix = "perplexity_"
    names = {key.removeprefix(prefix) for seeds in results.values() for one in seeds for key in one if prefix in key}
    weights = sorted((name for name in names if name.replace(".", "").isdigit()), key=float)
    return results_table(results, {f"{prefix}{weight}": f"lambda {weight}" for weight in weights}, digits=1)


def _columns(results: Results, columns: Mapping[str, str] | None) -> dict[str, str]:
    named = dict.fromkeys(chain.from_iterable(chain.from_iterable(results.values())))
    if columns is None:
        return {key: PERPLEXITIES.get(key, key) for key in named if not key.startswith("validation_")}
    return {key: told for key, told in columns.items() if key in named}


def _mean(key: str, seeds: Sequence[Mapping[str, float]], digits: int) -> str:
    values = [float(one[key]) if one.get(key) is not None else None for one in seeds]
    if key in _CHOSEN:
        return ", ".join(f"{value:g}" for value in sorted({value for value in values if value is not None}))
    return format_mean(values, digits=0 if key in ("seconds", "parameters") else digits)


def format_mean(values: Sequence[float | None], digits: int = 2) -> str:
    """Return "mean ± standard error" of the values that are not None; the error only if there are two or more.

    >>> format_mean([1.0, 3.0]), format_mean([1.0]), format_mean([None])
    ('2.00 ± 1.00', '1.00', '')
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean, error = mean_and_standard_error(known)
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def format_difference(values: Sequence[float], reference: Sequence[float]) -> str:
    """Return the difference of two means with its standard error, marked "none" if it is below two standard errors.

    The error is sqrt(e1^2 + e2^2), of the two means' standard errors; one seed alone has none.

    >>> format_difference([1.0, 1.2], [2.0, 2.2])
    '-1.00 ± 0.14'
    >>> format_difference([1.0, 3.0], [2.0, 2.2])
    'none (-0.10 ± 1.00)'
    >>> format_difference([1.0], [2.0])
    '-1.00 (one seed)'
    """
    (mean, error), (base, base_error) = mean_and_standard_error(values), mean_and_standard_error(reference)
    difference = mean - base
    if error is None or base_error is None:
        return f"{difference:+.2f} ({'one seed' if min(len(values), len(reference)) < 2 else 'a run diverged'})"
    both = math.hypot(error, base_error)
    shown = f"{difference:+.2f} ± {both:.2f}"
    return shown if abs(difference) >= 2 * both and difference else f"none ({shown})"
