"""The search over N, alpha and lambda: what it chooses, by which text."""

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tables.search_multitoken import chosen_of, chosen_table, outcomes_of

from lab.runs import Table

LAMBDAS = (0.0, 0.2, 0.4)
HEADS = {
    f"{target}-{size}-{alpha}": {"target": target, "ngram_size": size, "loss_weight": alpha}
    for target in ("embedding", "difference")
    for size in (2, 3)
    for alpha in (0.3, 1.0)
}
TABLE = Table({}, {"plain": {"target": None}, **HEADS}, [0, 1], Path())


def results_of(values, text="validation_"):
    """Return the results of one seed, with these perplexities at the lambdas."""
    return {f"{text}perplexity_{weight:g}": value for weight, value in zip(LAMBDAS, values, strict=True)}


def search(seeds=1, **special):
    """Return the outcomes of rows at 50, and others at the values given by name, one tuple a seed."""
    found = {name: special.get(name.replace("-", "_").replace(".", "_"), [(50.0,) * 3] * seeds) for name in HEADS}
    return outcomes_of(TABLE, {name: [results_of(one) for one in rows] for name, rows in found.items()})


@given(st.data())
def test_the_choice_is_the_lowest_mean_of_all_rows_and_lambdas_of_a_target(data):
    values = st.floats(1, 1000, width=16)
    drawn = {name: [data.draw(st.tuples(values, values, values)) for _ in range(2)] for name in HEADS}
    outcomes = outcomes_of(TABLE, {name: [results_of(one) for one in seeds] for name, seeds in drawn.items()})
    for chosen in chosen_of(outcomes):
        means = {
            (name, weight): sum(seed[number] for seed in seeds) / 2
            for name, seeds in drawn.items()
            for number, weight in enumerate(LAMBDAS)
            if HEADS[name]["target"] == chosen.target
        }
        assert chosen.perplexity == means[chosen.name, chosen.ensemble_weight] == min(means.values())


def test_lambda_is_chosen_over_all_seeds_and_of_ties_the_first_row_and_the_least_lambda():
    outcomes = search(2, difference_3_0_3=[(9.0, 1.0, 6.0), (9.0, 8.0, 2.0)])
    first, second = chosen_of(outcomes)
    assert (second.name, second.ensemble_weight, second.perplexity) == ("difference-3-0.3", 0.4, 4.0)
    assert (first.name, first.ensemble_weight) == ("embedding-2-0.3", 0.0)


def test_a_training_that_diverged_is_not_chosen():
    outcomes = search(difference_2_0_3=[(math.nan,) * 3])
    assert chosen_of(outcomes)[1].name == "difference-2-1.0"


def test_test_figures_are_those_of_the_chosen_lambda():
    outcomes = search(difference_3_0_3=[(40.0, 30.0, 35.0)], embedding_2_1_0=[(45.0, 46.0, 44.0)])
    test = {one.name: [results_of((42.0, 33.0, 20.0), "")] for one in outcomes}  # another lambda is lower there
    line = chosen_table(chosen_of(outcomes), test).splitlines()[-1]
    assert line == "| word differences | N = 3, alpha = 0.3, lambda = 0.2 | 40.00 | 30.00 | 42.00 | 33.00 |"
