"""The closed form is the sum over all pairs, with its gradient; what it gives for odd rows; what it refuses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets import cosine_regularization
from hf_targets.maths.cosine_regularization import check_cosine_weight


def over_all_pairs(weight, ignore_index=None):
    rows = [row for number, row in enumerate(weight) if number != ignore_index]
    directions = [row / row.norm() for row in rows if row.norm() > 0]
    total = sum((a @ b for i, a in enumerate(directions) for j, b in enumerate(directions) if i != j), torch.zeros(()))
    return total / len(rows) ** 2


def rows_of(num_rows, dim, seed, zero_rows=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_rows, dim, generator=generator, dtype=torch.float64)
    weight *= torch.rand(num_rows, 1, generator=generator, dtype=torch.float64) * 10
    weight[torch.randperm(num_rows, generator=generator)[:zero_rows]] = 0.0
    return weight.requires_grad_()


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 2), st.booleans(), st.integers(0, 10**6))
def test_the_closed_form_is_the_sum_over_all_pairs_with_its_gradient(num_rows, dim, zero_rows, ignores, seed):
    weight = rows_of(num_rows, dim, seed, zero_rows)
    ignored = seed % num_rows if ignores else None
    found, expected = cosine_regularization(weight, ignored), over_all_pairs(weight, ignored)
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-12)
    if not expected.requires_grad:
        return
    ours, theirs = (torch.autograd.grad(3 * value, weight)[0] for value in (found, expected))
    torch.testing.assert_close(ours, theirs.nan_to_num(), rtol=1e-9, atol=1e-12)


@given(st.integers(2, 40), st.integers(1, 8), st.integers(0, 10**6))
def test_it_lies_in_its_range_and_lengths_of_rows_do_not_matter(num_rows, dim, seed):
    weight = rows_of(num_rows, dim, seed)
    value = cosine_regularization(weight)
    assert -1 / num_rows - 1e-12 <= value <= 1 - 1 / num_rows + 1e-12
    torch.testing.assert_close(cosine_regularization(weight * torch.rand(num_rows, 1).add(0.1).double()), value)


def test_its_ends_are_reached():
    assert cosine_regularization(torch.ones(5, 3)) == pytest.approx(1 - 1 / 5)
    opposite = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert cosine_regularization(opposite) == pytest.approx(-1 / 2)


@pytest.mark.parametrize("length", [1e-30, 1e-19, 1e-14, 1e-10, 1e15])
def test_rows_of_odd_lengths_have_finite_gradients(length):
    weight = rows_of(5, 3, 0).detach().float()
    weight[1] *= length
    value = cosine_regularization(weight.requires_grad_())
    value.backward()
    assert torch.isfinite(weight.grad).all()
    others = torch.cat([weight[:1], weight[2:]]).double()
    if length < 1e-12:
        torch.testing.assert_close(value.double(), cosine_regularization(others) * 16 / 25)
        assert not weight.grad[1].any()
    else:
        torch.testing.assert_close(value.double(), cosine_regularization(weight.double()), rtol=1e-5, atol=1e-6)


def test_one_row_or_none_beside_the_ignored_one_gives_zero_and_no_gradient():
    for weight, ignored in ((torch.ones(1, 3), None), (torch.ones(2, 3), 0), (torch.zeros(4, 3), None)):
        weight.requires_grad_()
        value = cosine_regularization(weight, ignored)
        value.backward()
        assert value == 0 and not weight.grad.any()


def test_an_ignored_row_gets_no_gradient_and_is_as_if_it_were_not_there():
    weight = rows_of(6, 3, 0)
    value = cosine_regularization(weight, 2)
    value.backward()
    assert not weight.grad[2].any() and weight.grad[3].any()
    torch.testing.assert_close(value, cosine_regularization(torch.cat([weight[:2], weight[3:]])))


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_summed_in_full(autocast):
    weight = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    exact = weight.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value = cosine_regularization(weight)
        full = cosine_regularization(weight.float())
    cosine_regularization(exact).backward()
    value.backward()
    assert value.dtype == torch.float32 and weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value.double(), cosine_regularization(exact), rtol=1e-4, atol=1e-9)
    assert torch.equal(value, full)
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=0.01, atol=1e-9)


def test_descent_turns_a_cone_into_directions_that_sum_to_nothing():
    weight = (torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) + 3).requires_grad_()
    before = cosine_regularization(weight).item()
    optimizer = torch.optim.Adam([weight], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        cosine_regularization(weight).backward()
        optimizer.step()
    assert before > 0.8 and cosine_regularization(weight).item() == pytest.approx(-1 / 50, abs=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_what_is_no_number_or_no_row_is_refused(bad):
    weight = torch.ones(4, 3)
    weight[2, 1] = bad
    with pytest.raises(ValueError, match=r"must be finite, .*: \[2\]"):
        cosine_regularization(weight)
    for index in (-1, 4):
        with pytest.raises(ValueError, match="ignore_index"):
            cosine_regularization(torch.ones(4, 3), index)
    with pytest.raises(ValueError, match="must be 0 or more"):
        check_cosine_weight(-abs(bad) if bad == bad else bad)
