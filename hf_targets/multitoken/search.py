"""A search over N, alpha and lambda on validation text: the grid, its outcomes, and what they chose.

Each pair of N and alpha is trained once a seed; an evaluation gives the perplexities for all lambdas.

Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations", appendix
A.3.1 and table 8: the triples that such a search found for each method and corpus. The paper gives no grid.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hf_targets.figures.heat_map import HeatMap, plot_heat_maps
from hf_targets.markdown import markdown_table
from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.maths.statistics import format_mean
from hf_targets.training.comparison import Run

PLAIN = "plain"
"""Name of the model without heads, trained for comparison."""

_METHODS = {"embedding": "simple", "difference": "wdr"}
_TITLES = {"embedding": "simple N-gram", "difference": "word differences"}


@dataclass(frozen=True)
class GridPoint:
    """A model of the grid: its target, N and alpha."""

    target: str
    ngram_size: int
    loss_weight: float

    @property
    def name(self) -> str:
        """The name of its runs.

        >>> GridPoint("difference", 3, 0.3).name
        'wdr-3-alpha0.3'
        """
        return f"{_METHODS[self.target]}-{self.ngram_size}-alpha{self.loss_weight:g}"

    @property
    def heads(self) -> dict[str, Any]:
        """The fields of its configuration, as `MultiTokenForCausalLM.from_base` takes them."""
        return asdict(self)


@dataclass
class SearchSettings:
    """The grid of N and alpha, searched for each target.

    Raises:
        ValueError: If a list is empty, names a value twice, or names one that is out of range.
    """

    settings_title: ClassVar[str] = "Search"

    ngram_sizes: list[int] = field(default_factory=lambda: [2, 3, 4], metadata={"help": "Grid of N, each 2 or more."})
    loss_weights: list[float] = field(
        default_factory=lambda: [0.1, 0.3, 1.0], metadata={"help": "Grid of alpha, each 0 or more."}
    )
    targets: list[str] = field(
        default_factory=lambda: list(_METHODS),
        metadata={"help": '"embedding" for the simple N-gram, "difference" for word differences.'},
    )

    def __post_init__(self) -> None:
        _check_grid("ngram_sizes", "N", self.ngram_sizes)
        _check_grid("loss_weights", "alpha", self.loss_weights)
        _check_grid("targets", "target", self.targets)
        if wrong := [size for size in self.ngram_sizes if size < 2]:
            raise ValueError(
                f"ngram_sizes (N) must be 2 or more each, got {wrong[0]}; leave it out: the model without heads is "
                "trained anyway"
            )
        if wrong := [weight for weight in self.loss_weights if not 0 <= weight < math.inf]:
            raise ValueError(f"loss_weights (alpha) must be finite and 0 or more each, got {wrong[0]}; leave it out")
        if unknown := set(self.targets) - set(_METHODS):
            raise ValueError(f"targets must be of {' and '.join(_METHODS)}, got {', '.join(sorted(unknown))}")

    def points(self) -> list[GridPoint]:
        """Return the models of the grid, target by target and N by N."""
        sizes, weights = sorted(self.ngram_sizes), sorted(self.loss_weights)
        return [GridPoint(target, size, weight) for target in self.targets for size in sizes for weight in weights]


def check_lambdas(weights: Sequence[float]) -> None:
    """Check the grid of lambda, `ensemble_weights` of the training arguments.

    Raises:
        ValueError: If it is empty, names a value twice or one outside [0, 1], or leaves out 0.
    """
    _check_grid("ensemble_weights", "lambda", weights)
    for weight in weights:
        check_ensemble_weight(weight)
    if 0.0 not in weights:
        raise ValueError(
            f"ensemble_weights (lambda) must contain 0, the prediction without the ensemble, by which checkpoints are "
            f"chosen, got {', '.join(f'{weight:g}' for weight in weights)}; add it"
        )


@dataclass(frozen=True)
class SearchOutcome:
    """What one model of the grid reached on the validation text.

    Attributes:
        ensemble_weight: The lambda of the lowest mean perplexity over seeds; the least of them if several are as low.
        perplexities: At each lambda, one a seed.
    """

    point: GridPoint
    ensemble_weight: float
    perplexities: Mapping[float, Sequence[float]]

    @property
    def perplexity(self) -> float:
        """The mean over seeds at the best lambda; infinite if a training diverged."""
        return _mean(self.perplexities[self.ensemble_weight])

    @property
    def triple(self) -> str:
        """N, alpha and lambda as a text."""
        return f"N = {self.point.ngram_size}, alpha = {self.point.loss_weight:g}, lambda = {self.ensemble_weight:g}"


def search_outcomes(points: Sequence[GridPoint], runs: Sequence[Run], weights: Sequence[float]) -> list[SearchOutcome]:
    """Return what each model of the grid reached, in the order of `points`.

    Args:
        runs: Of all points with the same seeds; other runs are ignored.
        weights: The grid of lambda.
    Raises:
        ValueError: If the grid of lambda is wrong (`check_lambdas`), or a point has no run.
    """
    check_lambdas(weights)
    outcomes = []
    for point in points:
        found = [run.validation for run in runs if run.name == point.name]
        if not found:
            raise ValueError(f"each point of a grid needs a run, got none of {point.name}; train it, or leave it out")
        by_weight = {weight: [seed[f"perplexity_{weight:g}"] for seed in found] for weight in sorted(weights)}
        best = min(by_weight, key=lambda weight: _mean(by_weight[weight]))
        outcomes.append(SearchOutcome(point, best, by_weight))
    return outcomes


def chosen_outcomes(outcomes: Sequence[SearchOutcome]) -> list[SearchOutcome]:
    """Return of each target the outcome of the lowest perplexity; the first of several that are as low.

    Raises:
        ValueError: If all trainings of a target diverged.
    """
    chosen = []
    for target in dict.fromkeys(outcome.point.target for outcome in outcomes):
        best = min((one for one in outcomes if one.point.target == target), key=lambda one: one.perplexity)
        if not math.isfinite(best.perplexity):
            raise ValueError(
                f"no model with target={target!r} has a finite validation perplexity; lower the learning rate"
            )
        chosen.append(best)
    return chosen


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


def _mean(perplexities: Sequence[float]) -> float:
    mean = sum(perplexities) / len(perplexities)
    return math.inf if math.isnan(mean) else mean


def _check_grid(name: str, symbol: str, values: Sequence[Any]) -> None:
    if not values:
        raise ValueError(f"{name} must name at least one {symbol}, got none; give the values to search")
    shown = [value if isinstance(value, str) else f"{value:g}" for value in values]  # as they are in names and keys
    if twice := [value for value, times in Counter(shown).items() if times > 1]:
        raise ValueError(f"{name} must name each {symbol} once, got {twice[0]} twice; leave out the other")
