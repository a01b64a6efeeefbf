import math

import pytest

from hf_targets.curves.reconstruction import reconstruction_error


def test_enough_control_points_of_a_low_degree_lose_nothing():
    for row in reconstruction_error([2, 25, 64], [2.0, 3.0], [0.0, 0.1]):
        assert row.mse < 1e-26
        assert row.rank == row.length


def test_too_few_control_points_lose_the_directions_that_they_lack():
    (row,) = reconstruction_error([128], [0.2], [0.1])
    assert (row.num_control_points, row.degree, row.rank) == (25, 2, 25)
    assert row.mse == pytest.approx(1 - 25 / 128, abs=4 * math.sqrt(2 / (100 * 128)))
    assert row.mse == pytest.approx(0.812, abs=5e-4)  # the figure in CurveConfig


def test_a_higher_degree_and_fewer_control_points_lose_more():
    low, high = reconstruction_error([100], [1.5], [0.0, 0.66])
    few, many = reconstruction_error([100], [1.0, 3.0], [0.33])
    assert low.mse < 1e-20 < high.mse
    assert many.mse < few.mse
    assert (low.degree, high.degree, few.degree) == (2, 99, 33)


def test_rows_come_length_by_length_and_by_the_same_noise():
    rows = reconstruction_error([5, 6], [1.0, 2.0], [0.1, 0.2], num_sequences=3)
    settings = [(row.degree_ratio, row.num_control_points_ratio, row.length) for row in rows]
    assert settings == sorted(settings)
    assert rows == reconstruction_error([5, 6], [1.0, 2.0], [0.1, 0.2], num_sequences=3)
    one, other = (reconstruction_error([40], [0.5], [0.1], num_sequences=3, seed=seed)[0].mse for seed in (0, 1))
    assert one != other
    with pytest.raises(ValueError, match="num_sequences"):
        reconstruction_error([5], [1.0], [0.1], num_sequences=0)
