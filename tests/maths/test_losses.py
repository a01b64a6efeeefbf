import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from hf_targets.maths import losses
from hf_targets.maths.losses import IGNORED, ngram_weights, token_cross_entropy


def problem(rows: int, vocab: int = 11, dtype=torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 6, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, 6, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(vocab, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(vocab, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORED
    return hidden, weight, targets, bias


@pytest.mark.parametrize("path", ["fused", "recomputed"])
@given(rows=st.integers(1, 9), chunk=st.integers(1, 12), smoothing=st.sampled_from([0.0, 0.1]), seed=st.integers(0, 9))
def test_chunked_losses_and_their_gradients_are_those_of_whole_logits(path, rows, chunk, smoothing, seed):
    hidden, weight, targets, bias = problem(rows, seed=seed)
    scale = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "LOGITS_PER_CHUNK", chunk * 11)
        if path == "recomputed":
            patch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
        ours = token_cross_entropy(hidden, weight, targets, bias, label_smoothing=smoothing)
        gradients = torch.autograd.grad((scale * ours).sum(), (hidden, weight, bias))
    whole = F.cross_entropy(hidden @ weight.T + bias, targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(ours, whole, rtol=0, atol=1e-9)
    expected = torch.autograd.grad((scale * whole).sum(), (hidden, weight, bias))
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


def test_half_precision_gives_losses_in_float32():
    hidden, weight, targets, _ = problem(256, vocab=64, dtype=torch.bfloat16)
    ours = token_cross_entropy(hidden, weight, targets)
    exact = F.cross_entropy((hidden @ weight.T).double(), targets, reduction="none")
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_adds_up_the_gradients_of_chunks_in_full_precision(autocast):
    hidden, weight, targets, _ = problem(1024, vocab=16, dtype=torch.float32)
    exact = torch.autograd.grad(token_cross_entropy(hidden.double(), weight.double(), targets).sum(), weight)[0]
    errors = []
    for num_chunks in (1, 64):
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            patch.setattr(losses, "LOGITS_PER_CHUNK", 1024 // num_chunks * 16)
            rows, matrix = (hidden, weight) if autocast else (hidden.bfloat16(), weight.bfloat16())
            gradient = torch.autograd.grad(token_cross_entropy(rows, matrix, targets).sum(), weight)[0]
        errors.append(((gradient - exact).norm() / exact.norm()).item())
    assert errors[1] < 1.5 * errors[0] < 0.02


def test_autocast_takes_the_products_in_its_own_type():
    hidden, weight, targets, _ = problem(32, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = token_cross_entropy(hidden, weight, targets)
    half = token_cross_entropy(hidden.bfloat16(), weight.bfloat16(), targets)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, half)
    assert not torch.equal(ours, token_cross_entropy(hidden, weight, targets))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_targets_give_a_zero_loss_with_zero_gradients(smoothing):
    hidden, weight, targets, bias = problem(4)
    loss = token_cross_entropy(hidden, weight, torch.full_like(targets, IGNORED), bias, label_smoothing=smoothing)
    loss.sum().backward()
    assert (loss == 0).all()
    assert hidden.grad.abs().sum() == 0


def test_a_perplexity_is_finite_infinite_or_no_number():
    assert losses.perplexity(math.log(3)) == pytest.approx(3)
    assert losses.perplexity(800.0) == losses.perplexity(math.inf) == math.inf
    assert math.isnan(losses.perplexity(math.nan))


def test_the_ngram_weights_are_those_of_equation_6():
    parts = [1.0, 2.0, 3.0, 4.0]
    expected = 0.5 * 1 + 0.7 / (2 * 4 - 2) * (2 + 3 + 4)
    total = sum(weight * part for weight, part in zip(ngram_weights(3, 0.7), parts, strict=True))
    assert abs(total - expected) < 1e-12
