"""What a search over N, alpha and lambda found: its table, its heat maps, and the chosen models."""

from collections.abc import Sequence
from pathlib import Path

from hf_targets.figures.heat_map import HeatMap, plot_heat_maps
from hf_targets.markdown import markdown_table
from hf_targets.maths.statistics import format_mean
from hf_targets.multitoken.search import SearchOutcome, chosen_outcomes
from hf_targets.training.comparison import Run

PLAIN = "plain"
"""Name of the runs of the model without heads, trained for comparison."""

_TITLES = {"embedding": "simple N-gram", "difference": "word differences"}


def format_search(outcomes: Sequence[SearchOutcome]) -> str:
    """Return validation perplexities by target and N in rows and alpha in columns, as a Markdown table.

    A cell has the perplexity at the best lambda, with its standard error if there are several seeds, and that lambda.
    The lowest of each target is bold.
    """
    chosen = chosen_outcomes(outcomes)
    alphas = list(dict.fromkeys(one.point.loss_weight for one in outcomes))
    lines: dict[tuple[str, int], list[str]] = {}
    for one in outcomes:
        cell = f"{format_mean(one.perplexities[one.ensemble_weight])} ({one.ensemble_weight:g})"
        row = lines.setdefault((one.point.target, one.point.ngram_size), [])
        row.append(f"**{cell}**" if one in chosen else cell)
    columns = ["target", "N", *(f"alpha {alpha:g} (lambda)" for alpha in alphas)]
    rows = [[_TITLES[target], str(size), *cells] for (target, size), cells in lines.items()]
    return markdown_table(columns, rows, num_names=2)


def format_chosen(chosen: Sequence[SearchOutcome], measured: Sequence[Run]) -> str:
    """Return the chosen models with their perplexities on both texts, as a Markdown table.

    Args:
        measured: The runs of the chosen models, measured on the test text.
    """
    lines = []
    for one in chosen:
        tests = [run.test for run in measured if run.name == one.point.name]
        validation = [format_mean(one.perplexities[weight]) for weight in (0.0, one.ensemble_weight)]
        test = [format_mean([seed[f"perplexity_{w:g}"] for seed in tests]) for w in (0.0, one.ensemble_weight)]
        sizes = [str(one.point.ngram_size), f"{one.point.loss_weight:g}", f"{one.ensemble_weight:g}"]
        lines.append([_TITLES[one.point.target], *sizes, *validation, *test])
    columns = ["chosen", "N", "alpha", "lambda", "validation, lambda 0", "validation", "test, lambda 0", "test"]
    return markdown_table(columns, lines)


def describe_search(outcomes: Sequence[SearchOutcome], runs: Sequence[Run]) -> str:
    """Return in words what was searched, on what text, what was chosen, and how sure that is.

    Args:
        runs: All runs, those of the plain model too, if there are any.
    """
    num_seeds = len(next(iter(outcomes[0].perplexities.values())))
    plain = [run.validation["perplexity"] for run in runs if run.name == PLAIN]
    told = [
        f"{len(outcomes)} models of the grid were trained; the figures of the table are perplexities of the validation "
        "text at the best lambda, which the parentheses name. A checkpoint is the one of the lowest validation "
        "perplexity without the ensemble."
    ]
    if plain:
        told.append(f"The plain model has a validation perplexity of {format_mean(plain)}.")
    for one in chosen_outcomes(outcomes):
        told.append(f"Chosen for {_TITLES[one.point.target]}: {one.triple}.")
    if num_seeds == 1:
        told.append("There is one seed: small differences in the grid may be chance, and so may the choice.")
    else:
        told.append(f"Figures are means over {num_seeds} seeds with their standard errors.")
    told.append(
        "A chosen model's validation perplexity is the lowest of many, and so a little too low. Only chosen models are "
        "measured on the test text."
    )
    return " ".join(told)


def search_panels(outcomes: Sequence[SearchOutcome]) -> list[HeatMap]:
    """Return a heat map for each target: N to the right, alpha upwards; the chosen model is framed."""
    chosen, panels = chosen_outcomes(outcomes), []
    for one in chosen:
        own = {(o.point.loss_weight, o.point.ngram_size): o for o in outcomes if o.point.target == one.point.target}
        alphas, sizes = (list(dict.fromkeys(keys)) for keys in zip(*own, strict=True))
        panels.append(
            HeatMap(
                title=f"{_TITLES[one.point.target]}\n{one.triple}",
                columns=[str(size) for size in sizes],
                rows=[f"{alpha:g}" for alpha in alphas],
                values=[[own[alpha, size].perplexity for size in sizes] for alpha in alphas],
                notes=[[f"lambda {own[alpha, size].ensemble_weight:g}" for size in sizes] for alpha in alphas],
                marked=(alphas.index(one.point.loss_weight), sizes.index(one.point.ngram_size)),
            )
        )
    return panels


def plot_search(outcomes: Sequence[SearchOutcome], path: Path | str) -> None:
    """Draw a PNG of the heat maps (`search_panels`).

    Raises:
        ImportError: If matplotlib is missing.
    """
    num_seeds = len(next(iter(outcomes[0].perplexities.values())))
    seeds = "one seed" if num_seeds == 1 else f"mean of {num_seeds} seeds"
    quantity = f"validation perplexity, {seeds}"
    plot_heat_maps(search_panels(outcomes), path, xlabel="N", ylabel="alpha", quantity=quantity)
