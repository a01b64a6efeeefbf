import numpy as np
import pytest

from hf_targets.maths.bsplines import join, split


def matrix(rows, columns):
    """Return a random matrix that is the same from either end."""
    values = np.random.default_rng(0).standard_normal((rows, columns))
    return values + values[::-1, ::-1]


shapes = pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (2, 3), (6, 4), (5, 7), (7, 4), (8, 5)])


@shapes
def test_joining_the_blocks_gives_the_matrix_back(shape):
    values = matrix(*shape)
    symmetric, antisymmetric = split(values)
    assert symmetric.shape == tuple((size + 1) // 2 for size in shape)
    assert antisymmetric.shape == tuple(size // 2 for size in shape)
    np.testing.assert_allclose(join((symmetric, antisymmetric)), values, rtol=0, atol=1e-15)
    assert np.array_equal(values, matrix(*shape)), "split changes its argument"


@shapes
def test_the_singular_values_of_the_blocks_are_those_of_the_matrix(shape):
    values = matrix(*shape)
    of_blocks = np.concatenate([np.linalg.svd(block, compute_uv=False) for block in split(values) if block.size])
    missing = min(shape) - len(of_blocks)  # a block may have fewer rows where the other has fewer columns
    expected = np.linalg.svd(values, compute_uv=False)
    np.testing.assert_allclose(np.sort([*of_blocks, *[0.0] * missing]), np.sort(expected), rtol=0, atol=1e-13)


@shapes
def test_the_pseudo_inverses_of_the_blocks_make_that_of_the_matrix(shape):
    values = matrix(*shape)
    first, second = split(values)
    np.testing.assert_allclose(
        join((np.linalg.pinv(first), np.linalg.pinv(second))), np.linalg.pinv(values), atol=1e-12
    )


@shapes
def test_products_of_matrices_are_those_of_their_blocks(shape):
    one, other = matrix(*shape), matrix(shape[1], 3)
    blocks = (left @ right for left, right in zip(split(one), split(other), strict=True))
    for block, expected in zip(blocks, split(one @ other), strict=True):
        np.testing.assert_allclose(block, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_the_identity_is_split_and_joined_exactly(size):
    blocks = split(np.eye(size))
    assert np.array_equal(blocks[0], np.eye((size + 1) // 2)) and np.array_equal(blocks[1], np.eye(size // 2))
    assert np.array_equal(join(blocks), np.eye(size))
