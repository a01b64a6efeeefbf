"""Distance correlation against its definition, term by term, and its laws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from hf_targets.evaluation.distance_correlation import distance_correlations


def distance_correlation(first, second, **how):
    """Return the distance correlation of two vectors, the shorter one lengthened by zeros."""
    width = max(first.shape[-1], second.shape[-1])
    pair = [F.pad(vectors, (0, width - vectors.shape[-1])) for vectors in (first, second)]
    return distance_correlations(torch.stack(pair, dim=-3), **how)[..., 0, 1]


def by_definition(first, second, *, unbiased):
    """Return the distance correlation of samples (n, size), with sums in loops."""
    n, centred = len(first), []
    of_rows, of_all = (n - 2, (n - 1) * (n - 2)) if unbiased else (n, n * n)
    for vectors in (first, second):
        distances = [[float((one - other).norm()) for other in vectors] for one in vectors]
        rows, total = [sum(row) for row in distances], sum(map(sum, distances))
        table = [
            [distances[i][j] - rows[i] / of_rows - rows[j] / of_rows + total / of_all for j in range(n)]
            for i in range(n)
        ]
        for i in range(n if unbiased else 0):
            table[i][i] = 0.0
        centred.append(table)

    def covariance(one, other):
        return sum(one[i][j] * other[i][j] for i in range(n) for j in range(n))

    ratio = covariance(*centred) / (covariance(*centred[:1] * 2) * covariance(*centred[1:] * 2)) ** 0.5
    return ratio if unbiased else max(ratio, 0) ** 0.5


@given(seed=st.integers(0, 10_000), count=st.integers(4, 9), sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)))
@pytest.mark.parametrize("unbiased", [False, True])
def test_it_is_what_its_definition_says(unbiased, seed, count, sizes):
    draws = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(count, size, generator=draws, dtype=torch.float64) for size in sizes)
    second = second + first[:, :1]
    found = distance_correlation(first, second, unbiased=unbiased)
    assert found.item() == pytest.approx(by_definition(first, second, unbiased=unbiased), abs=1e-9)
    assert found <= 1 and (unbiased or found >= 0)


@pytest.mark.parametrize("unbiased", [False, True])
def test_small_distances_count_beside_a_large_one(unbiased):
    draws = torch.Generator().manual_seed(0)
    first, second = (torch.randn(40, 3, generator=draws, dtype=torch.float64) for _ in range(2))
    first[0] += 1e8
    second[0] += 1e8
    found = distance_correlation(first, second, unbiased=unbiased).item()
    assert found == pytest.approx(by_definition(first, second, unbiased=unbiased), rel=1e-6)


def test_what_does_not_vary_has_0():
    fixed = torch.full((6, 3), 0.1)
    for unbiased in (False, True):
        assert distance_correlation(fixed, torch.randn(6, 3), unbiased=unbiased) == 0
        assert distance_correlation(fixed, fixed, unbiased=unbiased) == 0


@pytest.mark.parametrize("count", [4, 8, 100])
def test_without_bias_samples_that_are_equally_far_apart_have_0(count):
    one, other = (torch.eye(count)[torch.randperm(count)] for _ in range(2))
    assert distance_correlation(one, other, unbiased=True) == 0
    assert distance_correlation(one, other) > 0.9


@pytest.mark.parametrize("unbiased", [False, True])
def test_several_vectors_have_those_of_each_two(unbiased):
    vectors = torch.randn(2, 3, 7, 4).cumsum(dim=1)
    found = distance_correlations(vectors, unbiased=unbiased)
    for one in range(3):
        for other in range(3):
            pair = distance_correlation(vectors[:, one], vectors[:, other], unbiased=unbiased)
            torch.testing.assert_close(found[:, one, other], pair)


@pytest.mark.parametrize(("count", "unbiased"), [(1, False), (3, True)])
def test_too_few_samples_are_refused(count, unbiased):
    with pytest.raises(ValueError, match="samples"):
        distance_correlations(torch.zeros(2, count, 2), unbiased=unbiased)
