"""What a few repetitions say of a mean."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.maths.statistics import mean_and_standard_error, student_margin
from lab.tables import format_difference, format_mean


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_mean_and_error_are_those_of_numpy(values):
    mean, error = mean_and_standard_error(values)
    assert mean == pytest.approx(np.mean(values), abs=1e-6)
    assert error == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)), abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_interval_covers_the_true_mean_as_often_as_it_says(count):
    draws = np.random.default_rng(0).normal(size=(4000, count))
    covered = 0
    for values in draws:
        mean, error = mean_and_standard_error(values.tolist())
        covered += abs(mean) <= student_margin(error, count)
    assert covered / len(draws) == pytest.approx(0.95, abs=0.01)


def test_means_of_one_distribution_rarely_differ():
    draws = np.random.default_rng(0).normal(size=(2000, 2, 8))
    found = sum(not format_difference(one.tolist(), other.tolist()).startswith("none") for one, other in draws)
    assert found / len(draws) == pytest.approx(0.065, abs=0.02)  # P(|t| > 2) with 14 degrees of freedom


def test_means_beyond_all_numbers_are_shown_and_never_raise():
    assert format_mean([1e200, 3e200], digits=0).endswith(" ± inf")
    assert format_mean([math.inf, 3.0]) == "inf"
    assert format_difference([math.inf, 1.0], [2.0, 2.0]).startswith("+inf")


def test_equal_means_without_errors_do_not_differ():
    assert format_difference([1.0, 1.0], [1.0, 1.0]) == "none (+0.00 ± 0.00)"
