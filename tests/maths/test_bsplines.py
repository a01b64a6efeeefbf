import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from hf_targets.maths.bsplines import basis_matrix, inverse_matrix


def setting(length, ratio, degree_ratio):
    count = int(length * ratio)
    return length, count, max(int(count * degree_ratio), 2)


@st.composite
def curves(draw, least=0):
    """Lengths with a curve that holds them: at least `least` more control points than tokens, and a low degree."""
    length = draw(st.integers(1, 40))
    count = draw(st.integers(length + least, 3 * length + least + 3))
    return length, count, draw(st.integers(0, min(5, count - 1))), draw(st.sampled_from([0.0, 0.01, 0.2]))


@given(curves())
@example((15, 15, 1, 0.01))  # the middle point lies on a knot
def test_every_point_is_an_average_of_its_degree_and_one_control_points(curve):
    basis = basis_matrix(*curve)
    assert basis.dtype == torch.float64
    assert basis.shape == (curve[1], curve[0])
    torch.testing.assert_close(basis.sum(dim=0), torch.ones(curve[0], dtype=torch.float64), rtol=0, atol=1e-14)
    assert basis.min() >= 0
    assert basis.max() <= 1
    assert (basis != 0).sum(dim=0).max() <= curve[2] + 1


@pytest.mark.parametrize(("length", "count", "degree"), [(2, 3, 2), (7, 14, 3), (30, 30, 5), (9, 4, 0)])
def test_a_curve_starts_and_ends_on_its_outer_control_points(length, count, degree):
    basis = basis_matrix(length, count, degree, margin=0.0)
    ends = torch.eye(count, dtype=torch.float64)[[0, -1]]
    assert torch.equal(basis[:, [0, -1]].T, ends)


@pytest.mark.parametrize("margin", [0.0, 0.01, 0.3])
def test_points_lie_evenly_between_the_margins(margin):
    knots = np.concatenate([np.zeros(3), np.linspace(0, 1, 8), np.ones(3)])
    positions = margin + (1 - 2 * margin) * np.arange(6) / 5
    control_points = np.random.default_rng(0).standard_normal(10)
    expected = BSpline(knots, control_points, 3)(positions)
    np.testing.assert_allclose(control_points @ basis_matrix(6, 10, 3, margin).numpy(), expected, atol=1e-13)


def test_one_point_lies_in_the_middle_whatever_the_margin():
    assert torch.equal(basis_matrix(1, 3, 2, margin=0.0), basis_matrix(1, 3, 2, margin=0.4))
    torch.testing.assert_close(basis_matrix(1, 3, 2)[:, 0], torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64))


def test_a_curve_looks_the_same_from_either_end():
    for curve in ((11, 20, 4), (1000, 2000, 3), (7, 7, 1)):
        basis = basis_matrix(*curve)
        torch.testing.assert_close(basis.flip(0, 1), basis, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 128])
def test_a_polygon_through_all_words_is_the_words_themselves(length):
    identity = torch.eye(length, dtype=torch.float64)
    degree = min(1, length - 1)
    for matrix in (basis_matrix(length, length, degree, 0.0), inverse_matrix(length, length, degree, 0.0)):
        assert torch.equal(matrix, identity)


@pytest.mark.parametrize(("ratio", "degree_ratio"), [(2.0, 0.1), (2.5, 0.1), (3.0, 0.05)])
@pytest.mark.parametrize("length", [2, 25, 250])
def test_control_points_give_back_the_words(length, ratio, degree_ratio):
    curve = setting(length, ratio, degree_ratio)
    product = inverse_matrix(*curve, max_norm=None) @ basis_matrix(*curve)
    torch.testing.assert_close(product, torch.eye(length, dtype=torch.float64), rtol=0, atol=1e-9)


@given(curves(least=5))
def test_the_inverse_is_that_of_moore_and_penrose_so_of_least_norm(curve):
    inverse = inverse_matrix(*curve, rank_deficient="pseudo_inverse", max_norm=None)
    basis = basis_matrix(*curve).numpy()
    expected = np.linalg.pinv(basis, rcond=1e-6)
    np.testing.assert_allclose(inverse.numpy(), expected, rtol=0, atol=1e-7 * np.linalg.norm(expected) ** 2)


@pytest.mark.parametrize(
    ("length", "ratio", "degree_ratio", "expected"),
    [
        (2, 2.0, 0.1, 1.0), (10, 2.0, 0.1, 1.4), (25, 2.0, 0.1, 2.0), (64, 2.0, 0.1, 5.1), (128, 2.0, 0.1, 29.8),
        (250, 2.0, 0.1, 903.7), (250, 2.5, 0.1, 225), (250, 3.0, 0.01, 1.8), (250, 3.0, 0.05, 8.8),
    ],
)  # fmt: skip
def test_long_curves_of_high_degree_have_large_control_points(length, ratio, degree_ratio, expected):
    inverse = inverse_matrix(*setting(length, ratio, degree_ratio), max_norm=None)
    norm = torch.linalg.matrix_norm(inverse, 2).item()
    positions = 0 if expected == 225 else 1
    assert round(norm, positions) == pytest.approx(expected)


def test_large_control_points_are_told():
    with pytest.warns(UserWarning, match=r"250 tokens .* degree 50 .* 904 times .* lower degree") as caught:
        inverse_matrix(250, 500, 50)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inverse_matrix(128, 256, 25)
        inverse_matrix(250, 500, 50, max_norm=904.0)
        inverse_matrix(250, 500, 50, max_norm=None)


def test_fewer_control_points_than_words_are_refused_or_lose_what_they_cannot_hold():
    with pytest.raises(ValueError, match=r"128 tokens need .* got 25.*singular.*num_control_points.*pseudo_inverse"):
        inverse_matrix(128, 25, 2)
    with pytest.raises(ValueError, match=r"5 tokens need .* got 4"):
        inverse_matrix(5, 4, 3)
    inverse, basis = inverse_matrix(128, 25, 2, rank_deficient="pseudo_inverse"), basis_matrix(128, 25, 2)
    assert torch.linalg.matrix_rank(inverse) == torch.linalg.matrix_rank(basis) == 25
    np.testing.assert_allclose(inverse.numpy(), np.linalg.pinv(basis.numpy()), atol=1e-12)
    projection = inverse @ basis
    torch.testing.assert_close(projection @ projection, projection)
    torch.testing.assert_close(projection, projection.T)


@pytest.mark.parametrize("curve", [(250, 500, 165), (250, 250, 2), (250, 250, 165)])
def test_words_that_a_curve_cannot_tell_apart_are_refused(curve):
    with pytest.raises(ValueError, match=r"250 tokens cannot be told apart.*lower degree.*pseudo_inverse"):
        inverse_matrix(*curve)
    inverse = inverse_matrix(*curve, rank_deficient="pseudo_inverse", max_norm=None)
    projection = inverse @ basis_matrix(*curve)
    assert projection.trace() < 249
    torch.testing.assert_close(projection @ projection, projection, rtol=0, atol=1e-6)


def test_a_pseudo_inverse_stays_usable_in_float32():
    curve = (250, 500, 165)
    tokens = torch.randn(10, 250)
    inverse = inverse_matrix(*curve, rank_deficient="pseudo_inverse", max_norm=None)
    once = tokens @ inverse.float() @ basis_matrix(*curve).float()
    assert (once - tokens).square().mean() < 0.5


def test_what_float64_holds_and_float32_does_not_is_cut_by_a_pseudo_inverse_alone():
    exact = inverse_matrix(128, 256, 84, max_norm=None)
    cut = inverse_matrix(128, 256, 84, rank_deficient="pseudo_inverse", max_norm=None)
    assert torch.linalg.matrix_norm(exact, 2) > 1e8
    assert torch.linalg.matrix_norm(cut, 2) < 2e6
    product = exact @ basis_matrix(128, 256, 84)
    torch.testing.assert_close(product, torch.eye(128, dtype=torch.float64), rtol=0, atol=1e-6)
