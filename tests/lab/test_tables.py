from lab.tables import PERPLEXITIES, differences_table, results_table, weights_table

PLAIN = [{"perplexity": value, "perplexity_0": value, "validation_perplexity": 1.0} for value in (20.0, 22.0)]
HEADS = [
    {"perplexity": 21.0, "perplexity_0.2": 18.0, "perplexity_ensemble": 18.0, "ensemble_weight": 0.2, "seconds": 1.2},
    {"perplexity": 21.0, "perplexity_0.2": 17.0, "perplexity_ensemble": 17.0, "ensemble_weight": 0.4, "seconds": 1.4},
]
RESULTS = {"plain": PLAIN, "wdr": HEADS}
COMPARED = {name: PERPLEXITIES[name] for name in ("perplexity", "perplexity_ensemble")}


def test_a_table_has_means_over_seeds_with_standard_errors_and_the_columns_that_are_there():
    assert results_table(RESULTS, PERPLEXITIES).splitlines() == [
        "| model | perplexity | with ensemble | lambda | training, s |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| plain | 21.00 ± 1.00 |  |  |  |",
        "| wdr | 21.00 ± 0.00 | 17.50 ± 0.50 | 0.2, 0.4 | 1 ± 0 |",
    ]
    assert weights_table(RESULTS).splitlines()[2:] == ["| plain | 21.0 ± 1.0 |  |", "| wdr |  | 17.5 ± 0.5 |"]


def test_a_difference_below_two_standard_errors_is_none_and_an_ensemble_is_compared_with_the_plain_perplexity():
    assert differences_table(RESULTS, COMPARED).splitlines()[2:] == ["| wdr | none (+0.00 ± 1.00) | -3.50 ± 1.12 |"]
    one = {name: seeds[:1] for name, seeds in RESULTS.items()}
    assert differences_table(one, COMPARED).splitlines()[2:] == ["| wdr | +1.00 (one seed) | -2.00 (one seed) |"]
    assert differences_table({"plain": PLAIN}) == ""
