import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.multitoken.configuration import MultiTokenConfig
from hf_targets.multitoken.search import (
    GridPoint,
    SearchSettings,
    check_lambdas,
    chosen_outcomes,
    search_outcomes,
)
from hf_targets.multitoken.search_report import (
    PLAIN,
    describe_search,
    format_chosen,
    format_search,
    plot_search,
    search_panels,
)
from hf_targets.training.comparison import Run

LAMBDAS = (0.0, 0.2, 0.4)
GRID = SearchSettings(ngram_sizes=[3, 2], loss_weights=[1.0, 0.3], targets=["embedding", "difference"])


def run_of(name, values, seed=0, test=None):
    """Return a run with these validation perplexities at the lambdas."""
    named = {f"perplexity_{weight:g}": value for weight, value in zip(LAMBDAS, values, strict=True)}
    return Run(name, seed, 1, 1.0, None, {"perplexity": values[0], **named}, test or {}, [])


def runs_of(seeds=(0,), **special):
    """Return runs of the whole grid at 50, and others at the values given by name."""
    names = [point.name for point in GRID.points()]
    return [run_of(name, special.get(name, (50.0, 50.0, 50.0)), seed) for seed, name in product(seeds, names)]


def test_a_grid_has_each_pair_of_each_target_once_in_order():
    names = [point.name for point in GRID.points()]
    assert names[:4] == ["simple-2-alpha0.3", "simple-2-alpha1", "simple-3-alpha0.3", "simple-3-alpha1"]
    assert [name.replace("simple", "wdr") for name in names[:4]] == names[4:]
    for point in GRID.points():
        config = MultiTokenConfig(**point.heads)
        assert (config.target, config.ngram_size, config.loss_weight) == (*point.heads.values(),)


@settings(deadline=None)
@given(st.data())
def test_the_choice_is_the_lowest_mean_of_all_points_and_lambdas_of_a_target(data):
    points, seeds = GRID.points(), (0, 1)
    values = st.floats(1, 1000, width=16)
    runs = [
        run_of(point.name, data.draw(st.tuples(values, values, values)), seed) for seed, point in product(seeds, points)
    ]
    means = {
        (point, weight): sum(run.validation[f"perplexity_{weight:g}"] for run in runs if run.name == point.name) / 2
        for point, weight in product(points, LAMBDAS)
    }
    outcomes = search_outcomes(points, runs, LAMBDAS)
    for chosen in chosen_outcomes(outcomes):
        lowest = min(mean for (point, _), mean in means.items() if point.target == chosen.point.target)
        assert chosen.perplexity == means[chosen.point, chosen.ensemble_weight] == lowest


def test_lambda_is_chosen_over_all_seeds_not_by_each():
    points = [GridPoint("difference", 2, 1.0)]
    runs = [run_of(points[0].name, values, seed) for seed, values in enumerate([(9, 1, 6), (9, 8, 2)])]
    (outcome,) = search_outcomes(points, runs, LAMBDAS)
    assert (outcome.ensemble_weight, outcome.perplexity) == (0.4, 4.0)


def test_of_points_and_lambdas_as_low_the_first_and_the_least_are_chosen():
    outcomes = search_outcomes(GRID.points(), runs_of(), LAMBDAS[::-1])
    assert [(one.point.name, one.ensemble_weight) for one in chosen_outcomes(outcomes)] == [
        ("simple-2-alpha0.3", 0.0), ("wdr-2-alpha0.3", 0.0),
    ]  # fmt: skip


def test_a_training_that_diverged_is_not_chosen_and_if_all_did_the_reader_is_told():
    bad = (math.nan, math.nan, math.nan)
    outcomes = search_outcomes(GRID.points(), runs_of(**{"wdr-2-alpha0.3": bad}), LAMBDAS)
    assert chosen_outcomes(outcomes)[1].point.name == "wdr-2-alpha1"
    assert "nan (0)" in format_search(outcomes)
    point = GRID.points()[:1]
    with pytest.raises(ValueError, match=r"no model with target='embedding' has a finite.*lower the learning rate"):
        chosen_outcomes(search_outcomes(point, [run_of(point[0].name, bad)], LAMBDAS))


def test_the_table_has_the_best_lambda_of_each_point_and_the_best_point_bold():
    runs = runs_of(**{"wdr-3-alpha0.3": (40.0, 30.0, 35.0), "simple-2-alpha1": (45.0, 46.0, 44.0)})
    outcomes = search_outcomes(GRID.points(), runs, LAMBDAS)
    assert format_search(outcomes).splitlines() == [
        "| target | N | alpha 0.3 (lambda) | alpha 1 (lambda) |",
        "| --- | --- | ---: | ---: |",
        "| simple N-gram | 2 | 50.00 (0) | **44.00 (0.4)** |",
        "| simple N-gram | 3 | 50.00 (0) | 50.00 (0) |",
        "| word differences | 2 | 50.00 (0) | 50.00 (0) |",
        "| word differences | 3 | **30.00 (0.2)** | 50.00 (0) |",
    ]
    panels = search_panels(outcomes)
    assert [(panel.columns, panel.rows) for panel in panels] == [(["2", "3"], ["0.3", "1"])] * 2
    assert panels[0].values == [[50.0, 50.0], [44.0, 50.0]]
    assert panels[1].values == [[50.0, 30.0], [50.0, 50.0]]
    assert [panel.marked for panel in panels] == [(1, 0), (0, 1)]
    assert panels[1].notes[0][1] == "lambda 0.2"


def test_test_figures_are_those_of_the_chosen_lambda_though_another_is_lower_there():
    point = GridPoint("difference", 2, 1.0)
    runs = [run_of(point.name, (40.0, 30.0, 35.0), test={"perplexity_0": 42.0, "perplexity_0.2": 33.0})]
    runs[0].test["perplexity_0.4"] = 20.0
    table = format_chosen(search_outcomes([point], runs, LAMBDAS), [*runs, run_of("other", (1.0, 1.0, 1.0))])
    assert table.splitlines()[-1] == "| word differences | 2 | 1 | 0.2 | 40.00 | 30.00 | 42.00 | 33.00 |"


@pytest.mark.parametrize(("seeds", "told"), [((0,), "There is one seed"), ((0, 1), "means over 2 seeds")])
def test_the_text_says_how_many_seeds_there_are_and_names_the_triples(seeds, told, tmp_path):
    runs = [*runs_of(seeds, **{"wdr-3-alpha0.3": (40.0, 30.0, 35.0)}), run_of(PLAIN, (44.0, 0.0, 0.0))]
    outcomes = search_outcomes(GRID.points(), runs, LAMBDAS)
    text = describe_search(outcomes, runs)
    assert told in text
    assert "Chosen for word differences: N = 3, alpha = 0.3, lambda = 0.2." in text
    assert "plain model has a validation perplexity of 44.00" in text
    assert " ± " not in format_search(outcomes) if len(seeds) == 1 else "30.00 ± 0.00 (0.2)" in format_search(outcomes)
    plot_search(outcomes, tmp_path / "search.png")
    assert (tmp_path / "search.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"ngram_sizes": []}, "ngram_sizes must name at least one N, got none; give the values to search"),
        ({"ngram_sizes": [2, 1]}, r"ngram_sizes \(N\) must be 2 or more each, got 1; leave it out"),
        ({"ngram_sizes": [3, 2, 3]}, "ngram_sizes must name each N once, got 3 twice; leave out the other"),
        ({"loss_weights": []}, "loss_weights must name at least one alpha, got none"),
        ({"loss_weights": [0.1, -1.0]}, r"loss_weights \(alpha\) must be finite and 0 or more each, got -1"),
        ({"loss_weights": [math.nan]}, "must be finite and 0 or more each, got nan"),
        ({"loss_weights": [math.inf]}, "must be finite and 0 or more each, got inf"),
        ({"loss_weights": [1, 1.0]}, "loss_weights must name each alpha once, got 1 twice"),
        ({"loss_weights": [0.1, 0.10000001]}, "loss_weights must name each alpha once, got 0.1 twice"),
        ({"targets": []}, "targets must name at least one target, got none"),
        ({"targets": ["magic"]}, "targets must be of embedding and difference, got magic"),
        ({"targets": ["embedding", "embedding"]}, "targets must name each target once, got embedding twice"),
    ],
)
def test_grids_that_cannot_be_searched_are_refused(fields, told):
    with pytest.raises(ValueError, match=told):
        SearchSettings(**fields)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([], "ensemble_weights must name at least one lambda, got none"),
        ([0.0, 1.2], r"must be in \[0, 1\], got 1.2"),
        ([0.0, -0.1], r"must be in \[0, 1\], got -0.1"),
        ([0.0, math.nan], r"must be in \[0, 1\], got nan"),
        ([0.0, 0.2, 0.2], "ensemble_weights must name each lambda once, got 0.2 twice"),
        ([0.2, 0.4], "must contain 0, .* got 0.2, 0.4; add it"),
    ],
)
def test_lambdas_that_cannot_be_searched_are_refused(weights, told):
    with pytest.raises(ValueError, match=told):
        check_lambdas(weights)
    with pytest.raises(ValueError, match=told):
        search_outcomes([], [], weights)


def test_a_point_without_a_run_is_told():
    with pytest.raises(ValueError, match="got none of wdr-2-alpha1; train it"):
        search_outcomes([GridPoint("difference", 2, 1.0)], [], LAMBDAS)
