"""Lemma 4.3 against errors that are mapped one by one."""

import pytest
import torch

from hf_targets.maths.bsplines import inverse_matrix
from lab.curve_analysis import error_importance

GRID = ([5, 12], [1.5, 2.0, 3.0], [0.01, 0.2])


def test_importances_are_those_of_errors_mapped_to_control_points():
    for row in error_importance(*GRID):
        inverse = inverse_matrix(row.length, row.num_control_points, row.degree, max_norm=None)
        dim = 7

        def importance(error, inverse=inverse):
            assert error.norm().item() == pytest.approx(1)
            return (error @ inverse).square().sum().item()

        everywhere = importance(torch.full((dim, row.length), (dim * row.length) ** -0.5, dtype=torch.float64))
        at_one = []
        for position in range(row.length):
            error = torch.zeros(dim, row.length, dtype=torch.float64)
            error[:, position] = dim**-0.5
            at_one.append(importance(error))
        ratios = [everywhere / one for one in at_one]
        found = (row.least_ratio, row.mean_ratio, row.largest_ratio)
        assert found == pytest.approx((min(ratios), sum(ratios) / len(ratios), max(ratios)))
        values = torch.linalg.eigvalsh(inverse @ inverse.T)
        assert row.eigenvalue_ratio == pytest.approx((values[-1] / values[0]).item())
        assert row.largest_ratio <= row.eigenvalue_ratio  # equation (6)


def test_a_higher_degree_weighs_errors_of_the_whole_text_less():
    low, high = error_importance([32], [2.0], [0.01, 0.2])
    assert high.eigenvalue_ratio > 20 * low.eigenvalue_ratio
    assert high.mean_ratio < 0.3 < low.mean_ratio < 1
