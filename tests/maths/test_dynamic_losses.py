import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from hf_targets.maths import dynamic_losses
from hf_targets.maths.dynamic_losses import dynamic_cross_entropy, token_kl_divergence
from hf_targets.maths.losses import IGNORED, token_cross_entropy

VOCAB, DIM = 9, 5
sizes = given(
    rows=st.integers(1, 7), num_phrases=st.integers(0, 4), seed=st.integers(0, 9), chunk=st.sampled_from([1, 2, 3, 99])
)


def problem(rows: int, num_phrases: int, seed: int = 0, dtype=torch.float64):
    """Hidden states, output matrix, its bias, phrases; targets; and phrases that are left out, never a target."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, DIM), (VOCAB, DIM), (VOCAB,), (num_phrases, DIM))
    tensors = [torch.randn(*shape, dtype=torch.float64, generator=generator) * 2 for shape in shapes]
    targets = torch.randint(VOCAB + num_phrases, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORED
    excluded = torch.rand(rows, num_phrases, generator=generator) < 0.5
    excluded[torch.arange(num_phrases) == targets[:, None] - VOCAB] = False
    return [tensor.to(dtype).requires_grad_() for tensor in tensors], targets, excluded


def whole_logits(hidden, weight, bias, phrases, excluded=None):
    """Logits over tokens and phrases, from one matrix."""
    logits = hidden @ torch.cat([weight, phrases]).T + torch.cat([bias, bias.new_zeros(len(phrases))])
    if excluded is None:
        return logits
    return logits.masked_fill(torch.cat([excluded.new_zeros(len(hidden), len(weight)), excluded], dim=1), -torch.inf)


def gradients(losses, tensors, seed=0):
    scale = torch.rand(len(losses), dtype=losses.dtype, generator=torch.Generator().manual_seed(seed))
    return torch.autograd.grad((scale * losses).sum(), tensors, allow_unused=True, materialize_grads=True)


def assert_near(ours, expected, **tolerance):
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, **{"rtol": 0, "atol": 1e-9, **tolerance})


@sizes
def test_the_two_sums_are_the_softmax_over_one_matrix(rows, num_phrases, seed, chunk):
    tensors, targets, excluded = problem(rows, num_phrases, seed)
    hidden, weight, bias, phrases = tensors
    for left_out in (None, excluded):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dynamic_losses, "LOGITS_PER_CHUNK", chunk * VOCAB)
            ours = dynamic_cross_entropy(hidden, weight, phrases, targets, bias, excluded=left_out)
            found = gradients(ours, tensors, seed)
        whole = F.cross_entropy(whole_logits(*tensors, left_out), targets, reduction="none", ignore_index=IGNORED)
        assert_near([ours, *found], [whole, *gradients(whole, tensors, seed)])
        assert (ours[targets == IGNORED] == 0).all()


def test_a_phrase_that_is_left_out_is_as_if_it_were_not_there():
    (hidden, weight, bias, phrases), targets, _ = problem(6, 3, seed=2)
    targets = targets.clamp(max=VOCAB - 1)
    excluded = torch.zeros(6, 3, dtype=torch.bool)
    excluded[:, 1] = True
    ours = dynamic_cross_entropy(hidden, weight, phrases, targets, bias, excluded=excluded)
    without = dynamic_cross_entropy(hidden, weight, phrases[[0, 2]], targets, bias)
    torch.testing.assert_close(ours, without, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(ours.sum(), phrases)
    assert (gradient[1] == 0).all()
    assert (gradient[[0, 2]] != 0).any()


@pytest.mark.parametrize("some", [True, False])
def test_a_row_without_any_phrase_is_that_of_tokens_alone(some):
    (hidden, weight, bias, phrases), _, _ = problem(5, 3)
    targets = torch.arange(5)
    excluded = torch.ones(5, 3, dtype=torch.bool)
    excluded[2] = not some
    ours = dynamic_cross_entropy(hidden, weight, phrases, targets, bias, excluded=excluded)
    tokens = token_cross_entropy(hidden, weight, targets, bias)
    alone = excluded.all(dim=1)
    assert_near([ours[alone]], [tokens[alone]], atol=1e-12)
    assert (ours[~alone] > tokens[~alone]).all()
    found = torch.autograd.grad(ours.sum(), (hidden, phrases))
    assert all(gradient.isfinite().all() for gradient in found)
    assert (found[1] == 0).all() == (not some)


@pytest.mark.parametrize("num_phrases", [0, 3])
def test_no_target_at_all_gives_a_zero_loss_and_zero_gradients(num_phrases):
    tensors, targets, _ = problem(4, num_phrases)
    hidden, weight, bias, phrases = tensors
    losses = dynamic_cross_entropy(hidden, weight, phrases, torch.full_like(targets, IGNORED), bias)
    losses.sum().backward()
    assert (losses == 0).all()
    assert hidden.grad.abs().sum() == 0
    assert phrases.grad.abs().sum() == 0


def test_half_precision_sums_the_same_rounded_logits_in_float32():
    tensors, targets, excluded = problem(64, 4, dtype=torch.bfloat16)
    hidden, weight, _, phrases = tensors
    ours = dynamic_cross_entropy(hidden, weight, phrases, targets, excluded=excluded)
    assert ours.dtype == torch.float32
    bias = torch.zeros(VOCAB, dtype=torch.bfloat16)
    logits = whole_logits(hidden, weight, bias, phrases, excluded).double()
    exact = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    assert (ours >= 0).all()  # which products of two kinds would not be
    with torch.autocast("cpu", dtype=torch.bfloat16):
        full = [tensor.float() for tensor in (hidden, weight, phrases)]
        assert torch.equal(dynamic_cross_entropy(*full, targets, excluded=excluded), ours)


@sizes
def test_divergences_and_their_gradients_are_those_of_whole_distributions(rows, num_phrases, seed, chunk):
    (hidden, weight, bias, _), _, _ = problem(rows, num_phrases, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    teacher = torch.randn(rows, DIM, dtype=torch.float64, generator=generator).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_losses, "LOGITS_PER_CHUNK", chunk * VOCAB)
        ours = token_kl_divergence(hidden, teacher, weight, bias)
        found = gradients(ours, [hidden, weight, bias, teacher], seed)
    p, q = ((states @ weight.T + bias).softmax(-1) for states in (hidden, teacher))
    whole = (p * (p / q.detach()).log()).sum(-1)
    assert_near([ours, *found], [whole, *gradients(whole, [hidden, weight, bias, teacher], seed)])
    assert not found[-1].any()


def test_a_divergence_from_itself_is_zero_and_from_another_positive():
    (hidden, weight, bias, _), _, _ = problem(4, 0)
    assert token_kl_divergence(hidden, hidden, weight, bias).abs().max() < 1e-12
    assert (token_kl_divergence(hidden, hidden + 1, weight, bias) > 0).all()
    assert token_kl_divergence(hidden[:0], hidden[:0], weight, bias).shape == (0,)


def test_a_share_too_small_to_be_a_number_gives_finite_divergences():
    hidden, weight = torch.tensor([[300.0, 0.0]], requires_grad=True), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss = token_kl_divergence(hidden, torch.zeros(1, 2), weight)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), hidden)[0].isfinite().all()


def test_divergences_in_half_precision_are_float32():
    (hidden, weight, bias, _), _, _ = problem(8, 3, dtype=torch.bfloat16)
    exact = token_kl_divergence(*(tensor.double() for tensor in (hidden, hidden.flip(0), weight, bias)))
    ours = token_kl_divergence(hidden, hidden.flip(0), weight, bias)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=0.1, atol=0.1)
