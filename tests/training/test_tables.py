import math

from hf_targets.training.comparison import Run
from hf_targets.training.tables import (
    by_name,
    format_bounds,
    format_differences,
    format_perplexities,
    format_weights,
)


def row(name, seed, test, weight=None, seconds=1.0):
    return Run(name, seed, 10, seconds, weight, {"perplexity": 30.0 + seed}, test, [])


PLAIN = [row("plain", seed, {"perplexity": value, "perplexity_0": value}) for seed, value in ((0, 20.0), (1, 22.0))]
HEADS = [
    row("wdr", 0, {"perplexity": 21.0, "perplexity_0": 21.0, "perplexity_0.2": 18.0, "perplexity_ensemble": 18.0}, 0.2),
    row("wdr", 1, {"perplexity": 21.0, "perplexity_0": 21.0, "perplexity_0.2": 17.0, "perplexity_ensemble": 17.0}, 0.4),
]
MIXED = [PLAIN[0], HEADS[0], PLAIN[1], HEADS[1]]


def test_a_table_has_means_over_seeds_and_their_standard_errors():
    lines = format_perplexities(MIXED).splitlines()[2:]
    assert lines[0] == "| plain | 21.00 ± 1.00 |  |  |  |  | 1 ± 0 |"
    assert lines[1] == "| wdr | 21.00 ± 0.00 | 17.50 ± 0.50 | 0.2, 0.4 |  |  | 1 ± 0 |"
    weights = ["| plain | 21.0 ± 1.0 |  |", "| wdr | 21.0 ± 0.0 | 17.5 ± 0.5 |"]
    assert format_weights(MIXED).splitlines()[2:] == weights


def test_one_seed_has_figures_and_no_errors():
    assert "| plain | 20.00 |  |  |  |  | 1 |" in format_perplexities([PLAIN[0], HEADS[0]])
    assert "| wdr | 21.00 | 18.00 | 0.2 |  |  | 1 |" in format_perplexities([PLAIN[0], HEADS[0]])
    assert format_weights([PLAIN[0], HEADS[0]]).splitlines()[2:] == ["| plain | 20.0 |  |", "| wdr | 21.0 | 18.0 |"]
    assert "| wdr | +1.00 (one seed) | -2.00 (one seed) |" in format_differences([PLAIN[0], HEADS[0]])


def test_a_difference_below_two_standard_errors_is_called_none():
    assert format_differences(MIXED).splitlines()[2:] == ["| wdr | none (+0.00 ± 1.00) | -3.50 ± 1.12 |"]


def test_a_bound_of_one_seed_has_the_interval_of_its_draws_and_says_so():
    test = {"perplexity": 100.0, "nelbo": math.log(100), "nelbo_margin": 0.1}
    assert "| 100.00 (90.48 to 110.52, 95% over draws) | 1.000 |" in format_bounds([row("mdlm", 0, test)])
    assert "| parameters | perplexity (lengths predicted) |" in format_bounds(
        [row("mdlm", 0, test)], "lengths predicted"
    )
    two = [row("mdlm", 0, test), row("mdlm", 1, {**test, "perplexity": 104.0})]
    assert "| 102.00 ± 2.00 | 1.000 | 30.50 ± 0.50 |" in format_bounds(two)
    curve = [row("curve", seed, {"perplexity": 51.0}, seconds=3.0) for seed in (0, 1)]
    assert "| curve | 10 | 51.00 ± 0.00 | 0.500 | 30.50 ± 0.50 | 3 ± 0 | 3.00 |" in format_bounds([*two, *curve])


def test_rows_of_a_name_stand_together_in_the_order_of_the_names():
    assert [(name, [one.seed for one in seeds]) for name, seeds in by_name(MIXED).items()] == [
        ("plain", [0, 1]),
        ("wdr", [0, 1]),
    ]
    assert format_differences(PLAIN) == ""
