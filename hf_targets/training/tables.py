"""Tables of rows that were trained side by side: means over seeds, standard errors, and which differences are any."""

from collections.abc import Callable, Sequence

from hf_targets.markdown import markdown_table
from hf_targets.maths.losses import perplexity
from hf_targets.maths.statistics import format_difference, format_mean, mean_and_standard_error
from hf_targets.training.comparison import Row


def by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each name, one a seed, the names in the order in which they first come."""
    names = dict.fromkeys(row.name for row in rows)
    return {name: [row for row in rows if row.name == name] for name in names}


def histories(rows: Sequence[Row]) -> dict[str, list[list[dict[str, float]]]]:
    """Return the logs of each name's rows, one a seed, as `figures.learning_curves` draws them."""
    return {name: [row.history for row in seeds] for name, seeds in by_name(rows).items()}


def format_table(rows: Sequence[Row]) -> str:
    """Return the rows' test perplexities as a Markdown table: token-level, word-level where known, with and without.

    Each is a mean over seeds with its standard error, with the ensemble at the weight (lambda) that each seed's
    validation text chose.
    """
    heading = ["model", "perplexity", "with ensemble", "lambda", "per word", "per word, ensemble", "training"]
    lines = []
    for name, seeds in by_name(rows).items():
        figures = [
            format_mean([row.test_perplexity(ensemble=ensemble, level=level) for row in seeds])
            for level in ("perplexity", "word_perplexity")
            for ensemble in (False, True)
        ]
        weights = sorted({row.ensemble_weight for row in seeds if row.ensemble_weight is not None})
        shown = ", ".join(f"{weight:g}" for weight in weights)
        seconds = format_mean([row.seconds for row in seeds], digits=0)
        lines.append([name, *figures[:2], shown, *figures[2:], f"{seconds} s"])
    return markdown_table(heading, lines)


def format_differences(rows: Sequence[Row]) -> str:
    """Return how far the rows' test perplexities are from the first row's, as a Markdown table; "" for one row.

    A difference below two standard errors is called none (`format_difference`).
    """
    (first, reference), *others = by_name(rows).items()
    if not others:
        return ""
    base = [row.test["perplexity"] for row in reference]
    has_heads = any(row.ensemble_weight is not None for row in rows)
    heading = [f"perplexity against {first}", "alone", *(["with ensemble"] if has_heads else [])]
    lines = []
    for name, seeds in others:
        alone = [row.test["perplexity"] for row in seeds]
        cells = [format_difference(alone, base)]
        if has_heads:
            ensemble = [row.test_perplexity(ensemble=True) for row in seeds]
            known = [value for value in ensemble if value is not None]
            cells.append(format_difference(known, base) if known else "")
        lines.append([name, *cells])
    return markdown_table(heading, lines)


def format_bounds(rows: Sequence[Row], what: str | None = None) -> str:
    """Return the rows' perplexity bounds on the test text as a Markdown table.

    With several seeds a bound is a mean with its standard error over seeds. With one it has its 95% interval over the
    draws of times and masks, by Student's t, which says nothing of other seeds.

    Args:
        what: The length protocol of the bounds, or another name for what they are of, for the heading.
    """
    groups = by_name(rows)
    first = next(iter(groups.values()))

    def mean(seeds: Sequence[Row], value: Callable[[Row], float]) -> float:
        return mean_and_standard_error([value(row) for row in seeds])[0]

    heading = "perplexity" if what is None else f"perplexity ({what})"
    columns = ["model", "parameters", heading, "x the first", "validation", "training", "x the first"]
    lines = []
    for name, seeds in groups.items():
        bound = format_mean([row.test["perplexity"] for row in seeds])
        if len(seeds) == 1 and (margin := seeds[0].test.get("nelbo_margin")) is not None:
            low, high = (perplexity(seeds[0].test["nelbo"] + side * margin) for side in (-1, 1))
            bound += f" ({low:.2f} to {high:.2f}, 95% over draws)"
        ratio = mean(seeds, lambda row: row.test["perplexity"]) / mean(first, lambda row: row.test["perplexity"])
        lines.append(
            [
                name,
                f"{seeds[0].num_parameters:,}",
                bound,
                f"{ratio:.3f}",
                format_mean([row.validation["perplexity"] for row in seeds]),
                f"{format_mean([row.seconds for row in seeds], digits=0)} s",
                f"{mean(seeds, lambda row: row.seconds) / mean(first, lambda row: row.seconds):.2f}",
            ]
        )
    return markdown_table(columns, lines)


def format_weights(rows: Sequence[Row], level: str = "perplexity") -> str:
    """Return the rows' test perplexities at every ensemble weight as a Markdown table, means over seeds."""
    prefix = f"{level}_"
    weights = sorted({float(key.removeprefix(prefix)) for row in rows for key in row.test if _is_weight(key, prefix)})
    lines = []
    for name, seeds in by_name(rows).items():
        figures = [[row.test.get(f"{prefix}{weight:g}") for row in seeds] for weight in weights]
        lines.append([name, *(format_mean(values, digits=1) for values in figures)])
    return markdown_table(["model", *(f"lambda {weight:g}" for weight in weights)], lines)


def _is_weight(key: str, prefix: str) -> bool:
    return key.startswith(prefix) and key.removeprefix(prefix).replace(".", "").isdigit()
