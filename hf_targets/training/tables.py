"""Tables of runs that were trained side by side: means over seeds, standard errors, and which differences are any."""

from collections.abc import Callable, Mapping, Sequence

from hf_targets.markdown import markdown_table
from hf_targets.maths.losses import perplexity
from hf_targets.maths.statistics import format_difference, format_mean, mean_and_standard_error
from hf_targets.training.comparison import Run


def by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each name, one a seed, the names in the order in which they first come."""
    names = dict.fromkeys(run.name for run in runs)
    return {name: [run for run in runs if run.name == name] for name in names}


def training_histories(runs: Sequence[Run]) -> dict[str, list[list[dict[str, float]]]]:
    """Return the logs of each name's runs, one a seed, as `figures.learning_curves` draws them."""
    return {name: [run.history for run in seeds] for name, seeds in by_name(runs).items()}


def metrics_by_name(runs: Sequence[Run]) -> dict[str, list[dict[str, float]]]:
    """Return the test metrics of each name's runs, one a seed, as `format_columns` shows them."""
    return {name: [run.test for run in seeds] for name, seeds in by_name(runs).items()}


def describe_comparison(
    runs: Sequence[Run],
    *,
    head_warmup_steps: int | None = None,
    finetuned: Mapping[str, str] | None = None,
    averaged: int = 1,
) -> str:
    """Return how runs compare, in Markdown, for the card of one of their models.

    Args:
        head_warmup_steps: Of the phase in which heads learnt alone, if there was one.
        finetuned: To names of models that go on from a trained one, the name of that one.
        averaged: Of how many checkpoints a model is the mean.
    """
    has_heads = any(run.ensemble_weight is not None for run in runs)
    kept = "The checkpoint of a run is the one of its lowest validation perplexity."
    if averaged > 1:
        kept = f"A model is the mean of the {averaged} checkpoints of its run with the lowest validation perplexity."
    last_steps = {max((int(entry["step"]) for entry in run.history if "step" in entry), default=0) for run in runs}
    updates = "updates, " if len(last_steps) == 1 else ""
    if not updates and not finetuned:
        kept += " They differ in their numbers of updates, as where some ended early."
    told = [
        "Figures are of the test text. All models were trained by the command below, on the same text, with the same "
        f"{updates}schedule, seeds and settings. {kept}"
    ]
    if finetuned:
        each = ", ".join(f"{name} from {begun}" for name, begun in finetuned.items())
        told.append(f"These go on from trained models, with further updates: {each}.")
    if has_heads:
        told.append(
            "The ensemble weight (lambda) is the best on the validation text. A training step with heads takes longer."
        )
    if has_heads and head_warmup_steps:
        told.append(f"Before that, heads learnt alone for {head_warmup_steps} updates, without the backbone.")
    if len({run.seed for run in runs}) > 1:
        told.append(
            "Figures are means over the seeds with their standard errors. A difference below two standard errors is "
            "called none."
        )
    else:
        told.append("There is one seed: a small difference between two models may be chance.")
    return " ".join(told)


def format_perplexities(runs: Sequence[Run]) -> str:
    """Return the runs' test perplexities as a Markdown table: token-level, word-level where known, with and without.

    Each is a mean over seeds with its standard error, with the ensemble at the weight (lambda) that each seed's
    validation text chose.
    """
    heading = ["model", "perplexity", "with ensemble", "lambda", "per word", "per word, ensemble", "training, s"]
    lines = []
    for name, seeds in by_name(runs).items():
        figures = [
            format_mean([run.test_perplexity(ensemble=ensemble, level=level) for run in seeds])
            for level in ("perplexity", "word_perplexity")
            for ensemble in (False, True)
        ]
        weights = sorted({run.ensemble_weight for run in seeds if run.ensemble_weight is not None})
        shown = ", ".join(f"{weight:g}" for weight in weights)
        seconds = format_mean([run.seconds for run in seeds], digits=0)
        lines.append([name, *figures[:2], shown, *figures[2:], seconds])
    return markdown_table(heading, lines)


def format_differences(runs: Sequence[Run]) -> str:
    """Return how far the runs' test perplexities are from the first model's, as a Markdown table; "" for one model.

    A difference below two standard errors is called none (`format_difference`).
    """
    (first, reference), *others = by_name(runs).items()
    if not others:
        return ""
    base = [run.test["perplexity"] for run in reference]
    has_heads = any(run.ensemble_weight is not None for run in runs)
    heading = [f"perplexity against {first}", "alone", *(["with ensemble"] if has_heads else [])]
    lines = []
    for name, seeds in others:
        alone = [run.test["perplexity"] for run in seeds]
        cells = [format_difference(alone, base)]
        if has_heads:
            ensemble = [run.test_perplexity(ensemble=True) for run in seeds]
            known = [value for value in ensemble if value is not None]
            cells.append(format_difference(known, base) if known else "")
        lines.append([name, *cells])
    return markdown_table(heading, lines)


def format_bounds(runs: Sequence[Run], what: str | None = None) -> str:
    """Return the runs' perplexity bounds on the test text as a Markdown table.

    With several seeds a bound is a mean with its standard error over seeds. With one it has its 95% interval over the
    draws of times and masks, by Student's t, which says nothing of other seeds.

    Args:
        what: The length protocol of the bounds, or another name for what they are of, for the heading.
    """
    groups = by_name(runs)
    first = next(iter(groups.values()))

    def mean(seeds: Sequence[Run], value: Callable[[Run], float]) -> float:
        return mean_and_standard_error([value(run) for run in seeds])[0]

    heading = "perplexity" if what is None else f"perplexity ({what})"
    columns = ["model", "parameters", heading, "x the first", "validation", "training, s", "x the first"]
    lines = []
    for name, seeds in groups.items():
        bound = format_mean([run.test["perplexity"] for run in seeds])
        if len(seeds) == 1 and (margin := seeds[0].test.get("nelbo_margin")) is not None:
            low, high = (perplexity(seeds[0].test["nelbo"] + side * margin) for side in (-1, 1))
            bound += f" ({low:.2f} to {high:.2f}, 95% over draws)"
        ratio = mean(seeds, lambda run: run.test["perplexity"]) / mean(first, lambda run: run.test["perplexity"])
        lines.append(
            [
                name,
                f"{seeds[0].num_parameters:,}",
                bound,
                f"{ratio:.3f}",
                format_mean([run.validation["perplexity"] for run in seeds]),
                format_mean([run.seconds for run in seeds], digits=0),
                f"{mean(seeds, lambda run: run.seconds) / mean(first, lambda run: run.seconds):.2f}",
            ]
        )
    return markdown_table(columns, lines)


def format_weights(runs: Sequence[Run], level: str = "perplexity") -> str:
    """Return the runs' test perplexities at every ensemble weight as a Markdown table, means over seeds."""
    prefix = f"{level}_"
    weights = sorted({float(key.removeprefix(prefix)) for run in runs for key in run.test if _is_weight(key, prefix)})
    lines = []
    for name, seeds in by_name(runs).items():
        figures = [[run.test.get(f"{prefix}{weight:g}") for run in seeds] for weight in weights]
        lines.append([name, *(format_mean(values, digits=1) for values in figures)])
    return markdown_table(["model", *(f"lambda {weight:g}" for weight in weights)], lines)


def _is_weight(key: str, prefix: str) -> bool:
    return key.startswith(prefix) and key.removeprefix(prefix).replace(".", "").isdigit()
