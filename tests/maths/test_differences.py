import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import binom

from hf_targets.maths.differences import (
    conjugate_coefficients,
    reconstructed_embeddings,
    reconstruction_conjugates,
    word_differences,
)

orders = st.integers(1, 6)


def sequence(time: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, time, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def differences_by_recursion(x: torch.Tensor, order: int, sign: int = 1) -> torch.Tensor:
    """Equations (7) and (8), entry by entry; with sign -1 the alternative below (8)."""
    out = torch.empty_like(x)
    for t in range(x.shape[1]):
        last = t == x.shape[1] - 1
        if order == 1:
            out[:, t] = x[:, t] if last else sign * (x[:, t + 1] - x[:, t])
        else:
            lower = differences_by_recursion(x, order - 1, sign)
            out[:, t] = lower[:, t] if last else sign * (lower[:, t + 1] - lower[:, t])
    return out


@given(order=st.integers(1, 4), time=st.integers(1, 7), reverse=st.booleans())
def test_differences_follow_their_recursive_definition(order, time, reverse):
    x = sequence(time)
    expected = differences_by_recursion(x, order, -1 if reverse else 1)
    torch.testing.assert_close(word_differences(x, order, reverse=reverse), expected, rtol=0, atol=1e-12)


@given(order=orders, extra=st.integers(0, 5))
def test_reversed_differences_have_the_sign_of_an_odd_level_turned(order, extra):
    x = sequence(order + 1 + extra)
    inner = slice(0, 1 + extra)
    ahead, back = (word_differences(x, order, reverse=reverse)[:, inner] for reverse in (False, True))
    torch.testing.assert_close(back, (-1) ** order * ahead, rtol=0, atol=1e-12)


def test_reversed_differences_at_the_end_of_a_text_are_others():
    x = sequence(3)
    ahead, back = (word_differences(x, 2, reverse=reverse)[:, 1] for reverse in (False, True))
    torch.testing.assert_close(ahead, x[:, 1])
    torch.testing.assert_close(back, x[:, 1] - 2 * x[:, 2])


@given(order=orders, extra=st.integers(0, 5))
def test_inner_differences_are_binomial_sums(order, extra):
    x = sequence(order + 1 + extra)
    result = word_differences(x, order)
    for t in range(1 + extra):
        terms = [binom(order, i) * (-1) ** i * x[:, t + order - i] for i in range(order + 1)]
        torch.testing.assert_close(result[:, t], torch.stack(terms).sum(0), rtol=0, atol=1e-12)


@given(order=orders, extra=st.integers(0, 5), reverse=st.booleans())
def test_difference_and_conjugate_give_the_next_embedding(order, extra, reverse):
    x = sequence(order + 1 + extra)
    difference = word_differences(x, order, reverse=reverse)[:, : 1 + extra]
    conjugate = reconstruction_conjugates(x[:, :-1], order)  # in both directions, from the same known embeddings
    back = reconstructed_embeddings(difference, conjugate, order, reverse=reverse)
    torch.testing.assert_close(back, x[:, order:], rtol=0, atol=1e-12)


def test_a_conjugate_does_not_see_the_word_it_reconstructs():
    x = sequence(4).requires_grad_()
    reconstruction_conjugates(x, 3)[:, 0].sum().backward()
    assert x.grad[:, 3].abs().sum() == 0
    assert (x.grad[:, :3].abs().sum((0, 2)) > 0).all()


@given(order=orders)
def test_coefficients_have_absolute_sum_two_to_the_n_minus_one_and_sum_one(order):
    coefficients = conjugate_coefficients(order)
    assert sum(map(abs, coefficients)) == 2**order - 1
    assert sum(coefficients) == 1
