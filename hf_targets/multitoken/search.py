"""A search over N, alpha and lambda on validation text: the grid, its outcomes, and what they chose.

Each pair of N and alpha is trained once a seed; an evaluation gives the perplexities for all lambdas.

Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations", appendix
A.3.1 and table 8: the triples that such a search found for each method and corpus. The paper gives no grid.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.training.comparison import Run

_METHODS = {"embedding": "simple", "difference": "wdr"}


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


def _mean(perplexities: Sequence[float]) -> float:
    mean = sum(perplexities) / len(perplexities)
    return math.inf if math.isnan(mean) else mean


def _check_grid(name: str, symbol: str, values: Sequence[Any]) -> None:
    if not values:
        raise ValueError(f"{name} must name at least one {symbol}, got none; give the values to search")
    shown = [value if isinstance(value, str) else f"{value:g}" for value in values]  # as they are in names and keys
    if twice := [value for value, times in Counter(shown).items() if times > 1]:
        raise ValueError(f"{name} must name each {symbol} once, got {twice[0]} twice; leave out the other")
