import pytest
import torch

from hf_targets.curves.reconstruction import reconstruction_error
from hf_targets.maths.bsplines import basis_matrix, inverse_matrix


def test_enough_control_points_of_a_low_degree_lose_nothing():
    for row in reconstruction_error([2, 25, 64], [2.0, 3.0], [0.0, 0.1]):
        assert row.mse < 1e-26
        assert row.rank == row.length


def test_too_few_control_points_lose_the_directions_that_they_lack():
    (row,) = reconstruction_error([128], [0.2], [0.1])
    assert (row.num_control_points, row.degree, row.rank) == (25, 2, 25)
    assert row.mse == pytest.approx(1 - 25 / 128)
    noise = torch.randn(2000, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    setting = (128, row.num_control_points, row.degree)
    back = noise @ inverse_matrix(*setting, rank_deficient="pseudo_inverse", max_norm=None) @ basis_matrix(*setting)
    assert row.mse == pytest.approx((back - noise).square().mean().item(), rel=0.01)


def test_a_higher_degree_and_fewer_control_points_lose_more():
    low, high = reconstruction_error([100], [1.5], [0.0, 0.66])
    few, many = reconstruction_error([100], [1.0, 3.0], [0.33])
    assert low.mse < 1e-20 < high.mse
    assert many.mse < few.mse
    assert (low.degree, high.degree, few.degree) == (2, 99, 33)
