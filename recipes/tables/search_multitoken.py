"""Search N, alpha and lambda for a small decoder with heads, on the validation text, for each target (table 8).

Each pair of N and alpha is a row, trained once a seed; all lambdas are evaluated in one pass. It prints a table of
validation perplexities, draws a heat map, names the best triple of each target, and tells the test perplexity of that
alone. The paper gives the triples that such a search found, and no grid. At a size for a CPU, with one seed:

    HF_TARGETS_DATA=data python recipes/tables/search_multitoken.py recipes/settings/tables/search_multitoken/cpu.yaml

The decoder of the paper: `.../paper.yaml`, on one GPU; in a minute, on documentation: `.../smoke.yaml`. A chosen
model's validation perplexity is the lowest of many, and so a little too low.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import finetune_gptneo_wdr as recipe

from lab.heat_map import HeatMap, plot_heat_maps
from lab.runs import Table, compare, run_table
from lab.tables import Results, format_mean, markdown_table

TITLES = {"embedding": "simple N-gram", "difference": "word differences"}


@dataclass(frozen=True)
class Outcome:
    """What a row reached on the validation text: at each lambda a perplexity a seed, and the best lambda."""

    name: str
    target: str
    ngram_size: int
    loss_weight: float
    ensemble_weight: float
    perplexities: Mapping[float, Sequence[float]]

    @property
    def perplexity(self) -> float:
        """The mean over seeds at the best lambda."""
        return _mean(self.perplexities[self.ensemble_weight])

    @property
    def triple(self) -> str:
        """N, alpha and lambda."""
        return f"N = {self.ngram_size}, alpha = {self.loss_weight:g}, lambda = {self.ensemble_weight:g}"


def outcomes_of(table: Table, results: Results) -> list[Outcome]:
    """Return what each row with heads reached; of several lambdas that are as good, the least is best."""
    outcomes = []
    for name, row in table.rows.items():
        if row.get("target") is None:
            continue
        prefix, seeds = "validation_perplexity_", results[name]
        weights = sorted(float(key[len(prefix) :]) for key in seeds[0] if key[len(prefix) :].replace(".", "").isdigit())
        by_weight = {weight: [seed[f"{prefix}{weight:g}"] for seed in seeds] for weight in weights}
        best = min(by_weight, key=lambda weight: _mean(by_weight[weight]))
        outcomes.append(Outcome(name, row["target"], row["ngram_size"], row["loss_weight"], best, by_weight))
    return outcomes


def chosen_of(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return of each target the outcome of the lowest perplexity; the first of several that are as low."""
    targets = dict.fromkeys(one.target for one in outcomes)
    return [min((one for one in outcomes if one.target == t), key=lambda one: one.perplexity) for t in targets]


def search_table(outcomes: Sequence[Outcome]) -> str:
    """Return validation perplexities at the best lambda, in parentheses; the lowest of each target is bold."""
    chosen, lines = chosen_of(outcomes), {}
    for one in outcomes:
        cell = f"{format_mean(one.perplexities[one.ensemble_weight])} ({one.ensemble_weight:g})"
        lines.setdefault((one.target, one.ngram_size), []).append(f"**{cell}**" if one in chosen else cell)
    alphas = dict.fromkeys(one.loss_weight for one in outcomes)
    columns = ["target", "N", *(f"alpha {alpha:g} (lambda)" for alpha in alphas)]
    return markdown_table(columns, [[TITLES[t], str(n), *cells] for (t, n), cells in lines.items()], num_names=2)


def chosen_table(chosen: Sequence[Outcome], results: Results) -> str:
    """Return the chosen models with their perplexities on both texts."""
    lines = []
    for one in chosen:
        weights = (0.0, one.ensemble_weight)
        validation = [format_mean(one.perplexities[weight]) for weight in weights]
        test = [format_mean([seed[f"perplexity_{weight:g}"] for seed in results[one.name]]) for weight in weights]
        lines.append([TITLES[one.target], one.triple, *validation, *test])
    columns = ["chosen", "", "validation, lambda 0", "validation", "test, lambda 0", "test"]
    return markdown_table(columns, lines, num_names=2)


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw a heat map for each target: N to the right, alpha upwards; the chosen model is framed."""
    panels = []
    for one in chosen_of(outcomes):
        own = {(o.loss_weight, o.ngram_size): o for o in outcomes if o.target == one.target}
        alphas, sizes = (list(dict.fromkeys(keys)) for keys in zip(*own, strict=True))
        panels.append(
            HeatMap(
                title=f"{TITLES[one.target]}\n{one.triple}",
                columns=[str(size) for size in sizes],
                rows=[f"{alpha:g}" for alpha in alphas],
                values=[[own[alpha, size].perplexity for size in sizes] for alpha in alphas],
                notes=[[f"lambda {own[alpha, size].ensemble_weight:g}" for size in sizes] for alpha in alphas],
                marked=(alphas.index(one.loss_weight), sizes.index(one.ngram_size)),
            )
        )
    plot_heat_maps(panels, xlabel="N", ylabel="alpha", quantity="validation perplexity").savefig(path)


def main(table: Table) -> str:
    """Train the grid, draw it, and return its tables."""
    results = compare(recipe, **vars(table))
    outcomes = outcomes_of(table, results)
    plot(outcomes, table.output_dir / "search.png")
    plain = [
        seed["validation_perplexity"] for name in results.keys() - {o.name for o in outcomes} for seed in results[name]
    ]
    told = f"The plain model has a validation perplexity of {format_mean(plain)}."
    return "\n\n".join([told, search_table(outcomes), chosen_table(chosen_of(outcomes), results)])


def _mean(perplexities: Sequence[float]) -> float:
    mean = sum(perplexities) / len(perplexities)
    return math.inf if math.isnan(mean) else mean


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
