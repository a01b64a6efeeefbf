"""Intervals hold the true value as often as they say, and pair the texts of one prefix."""

import numpy as np
import pytest

from hf_targets.evaluation.continuations import Continuations
from hf_targets.evaluation.intervals import bootstrap_interval, format_intervals


def continuations(texts, steps, phrases, seconds) -> Continuations:
    return Continuations(texts, steps, phrases, seconds, [0.0] * len(texts))


def test_an_interval_of_a_mean_is_that_of_the_normal_distribution_and_repeats():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    low, high = bootstrap_interval(lambda numbers: values[numbers].mean(axis=-1), len(values))
    error = values.std(ddof=1) / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.3 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.3 * error)
    assert (low, high) == bootstrap_interval(lambda numbers: values[numbers].mean(axis=-1), len(values))
    wide = bootstrap_interval(lambda numbers: values[numbers].mean(axis=-1), len(values), confidence=0.99)
    assert wide[0] < low < high < wide[1]


def test_intervals_of_95_percent_hold_the_truth_in_95_of_100_cases():
    random, held = np.random.default_rng(0), 0
    for _ in range(300):
        values = random.exponential(size=60)
        low, high = bootstrap_interval(lambda numbers, v=values: v[numbers].mean(axis=-1), 60, num_resamples=400)
        held += low <= 1.0 <= high
    assert 0.88 <= held / 300 <= 0.98


def test_a_difference_that_holds_at_every_prefix_is_found_though_prefixes_differ_more():
    random = np.random.default_rng(0)
    texts = [random.integers(0, 50, size=30).tolist() for _ in range(40)]
    steps = random.integers(40, 120, size=40).tolist()
    plain = continuations(texts, steps, [0] * 40, [1.0] * 40)
    ours = continuations(texts, [count - 2 for count in steps], [4] * 40, [1.0] * 40)
    table = format_intervals({"plain": [plain], "ours": [ours, ours]})
    heading, _, first, second, difference = table.splitlines()
    assert heading == "| model | diversity, % | nsl, steps | phrase_share, % |"
    assert difference.startswith("| ours - first | none (+0.00 to +0.00) | -2.00 to -2.00 | +")
    low, high = (float(end) for end in second.split("|")[3].split(" to "))
    assert low < np.mean(steps) - 2 < high and high - low > 5
    assert "| 0.00 to 0.00 |" in first


def test_a_column_that_few_texts_have_has_no_interval():
    tokens = [[1, 2, 3, 4, 5], [], [], []]
    table = format_intervals({"a": [continuations(tokens, [4] * 4, [0] * 4, [1.0] * 4)]})
    assert "| a | too few texts |" in table and "nan" not in table


def test_too_few_items_and_unequal_prefixes_are_refused():
    one, two = (continuations([[1, 2, 3, 4]] * count, [4] * count, [0] * count, [1.0] * count) for count in (1, 2))
    assert format_intervals({"plain": [one]}) == "One prefix has no interval."
    with pytest.raises(ValueError, match="at least 2 items to resample, got 1"):
        bootstrap_interval(lambda numbers: numbers.mean(axis=-1), 1)
    with pytest.raises(ValueError, match="the same prefixes, got 1, 2 texts"):
        format_intervals({"plain": [one], "ours": [two]})
    with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\), got 95"):
        bootstrap_interval(lambda numbers: numbers.mean(axis=-1), 4, confidence=95)
