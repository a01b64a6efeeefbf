"""Intervals hold the true value as often as they say."""

import numpy as np
import pytest

from hf_targets.evaluation.intervals import bootstrap_interval


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


def test_too_few_items_are_refused():
    with pytest.raises(ValueError, match="at least 2 items"):
        bootstrap_interval(lambda numbers: numbers.mean(axis=-1), 1)
    with pytest.raises(ValueError, match="confidence"):
        bootstrap_interval(lambda numbers: numbers.mean(axis=-1), 4, confidence=95)
