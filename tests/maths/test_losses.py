import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hf_targets.maths import losses
from hf_targets.maths.losses import IGNORED, ngram_weights, token_cross_entropy, weighted_cross_entropy


def problem(rows: int, vocab: int = 11, dtype=torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 6, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, 6, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(vocab, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(vocab, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORED
    return hidden, weight, targets, bias


def capped(logits, cap):
    return logits if cap is None else cap * (logits / cap).tanh()


@pytest.mark.parametrize("path", ["fused", "recomputed"])
@given(
    rows=st.integers(1, 9),
    chunk=st.integers(1, 12),
    smoothing=st.sampled_from([0.0, 0.1]),
    cap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 9),
)
def test_chunked_losses_and_their_gradients_are_those_of_whole_logits(path, rows, chunk, smoothing, cap, seed):
    hidden, weight, targets, bias = problem(rows, seed=seed)
    scale = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "LOGITS_PER_CHUNK", chunk * 11)
        if path == "recomputed":
            patch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
        ours = token_cross_entropy(hidden, weight, targets, bias, label_smoothing=smoothing, cap=cap)
        gradients = torch.autograd.grad((scale * ours).sum(), (hidden, weight, bias))
    logits = capped(hidden @ weight.T + bias, cap)
    whole = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
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


def test_a_perplexity_is_finite_infinite_or_no_number():
    assert losses.perplexity(math.log(3)) == pytest.approx(3)
    assert losses.perplexity(800.0) == losses.perplexity(math.inf) == math.inf
    assert math.isnan(losses.perplexity(math.nan))


def test_the_ngram_weights_are_those_of_equation_6():
    parts = [1.0, 2.0, 3.0, 4.0]
    expected = 0.5 * 1 + 0.7 / (2 * 4 - 2) * (2 + 3 + 4)
    total = sum(weight * part for weight, part in zip(ngram_weights(3, 0.7), parts, strict=True))
    assert abs(total - expected) < 1e-12


VOCAB = 11


def weights_of(rows: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    """Weights of rows: unequal, and some of them 0."""
    values = torch.rand(rows, dtype=dtype, generator=torch.Generator().manual_seed(seed)) * 3
    return values.masked_fill(values < 0.3, 0.0)


def brute_force(hidden, weight, targets, row_weights, bias, smoothing=0.0, cap=None):
    """The same sum from whole logits, for autograd to differentiate."""
    logits = capped(hidden @ weight.T + (0.0 if bias is None else bias), cap)
    whole = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    return (row_weights * whole).sum(), whole


@given(
    rows=st.integers(0, 9),
    chunk=st.integers(1, 12),
    block=st.integers(1, 4),
    smoothing=st.sampled_from([0.0, 0.1]),
    has_bias=st.booleans(),
    cap=st.sampled_from([None, 2.0]),
    factor=st.sampled_from([1.0, -0.25]),
    padding=st.integers(0, 5),  # as on a GPU
    seed=st.integers(0, 99),
)
def test_the_sum_its_losses_and_gradients_are_those_of_whole_logits(
    rows, chunk, block, smoothing, has_bias, cap, factor, padding, seed
):
    hidden, weight, targets, bias = problem(rows, seed=seed)
    row_weights, bias = weights_of(rows, seed), bias if has_bias else None
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "LOGITS_PER_CHUNK", chunk * VOCAB)
        patch.setattr(losses, "LOGITS_IN_CACHE", block * VOCAB)
        patch.setattr(losses, "_aligned", lambda matrix: F.pad(matrix, (0, 0, 0, padding)))
        for total, parts in (
            weighted_cross_entropy(hidden, weight, targets, row_weights, bias, label_smoothing=smoothing, cap=cap),
            brute_force(hidden, weight, targets, row_weights, bias, smoothing, cap),
        ):
            results.append([total, parts, *torch.autograd.grad(factor * total, inputs)])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_finite_differences_give_the_same_gradients(smoothing):
    hidden, weight, targets, bias = problem(5)
    row_weights = weights_of(5)

    def total(*inputs):
        return weighted_cross_entropy(*inputs[:2], targets, row_weights, inputs[2], label_smoothing=smoothing)[0]

    assert torch.autograd.gradcheck(total, (hidden, weight, bias))


@pytest.mark.parametrize("needed", [flags for flags in product([True, False], repeat=3) if any(flags)])
def test_only_needed_gradients_are_computed(needed):
    hidden, weight, targets, bias = problem(7)
    inputs = [tensor.requires_grad_(flag) for tensor, flag in zip((hidden, weight, bias), needed, strict=True)]
    total, parts = weighted_cross_entropy(hidden, weight, targets, weights_of(7), bias)
    assert not parts.requires_grad
    assert [saved is not None for saved in total.grad_fn.saved_tensors] == list(needed)
    total.backward()
    expected = brute_force(hidden.detach(), weight.detach(), targets, weights_of(7), bias.detach())[0]
    assert [tensor.grad is not None for tensor in inputs] == list(needed)
    torch.testing.assert_close(total.detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_are_the_same_bit_for_bit_with_and_without_gradients(dtype, smoothing):
    hidden, weight, targets, bias = (
        tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in problem(257, dtype=torch.float32)
    )
    rest = targets, weights_of(257), bias.detach()
    expected, whole = weighted_cross_entropy(hidden, weight, *rest, label_smoothing=smoothing)
    assert expected.requires_grad
    with torch.no_grad():
        total, parts = weighted_cross_entropy(hidden, weight, *rest, label_smoothing=smoothing)
    frozen = weighted_cross_entropy(hidden.detach(), weight.detach(), *rest, label_smoothing=smoothing)
    for one, losses_of_rows in ((total, parts), frozen):
        assert not one.requires_grad
        assert torch.equal(one, expected) and torch.equal(losses_of_rows, whole)


def test_a_second_backward_pass_adds_the_same_gradients_and_a_second_derivative_is_an_error():
    hidden, weight, targets, bias = problem(7)
    total, _ = weighted_cross_entropy(hidden, weight, targets, weights_of(7), bias)
    total.backward(retain_graph=True)
    once = [tensor.grad.clone() for tensor in (hidden, weight, bias)]
    (3 * total).backward()
    for tensor, gradient in zip((hidden, weight, bias), once, strict=True):
        torch.testing.assert_close(tensor.grad, 4 * gradient)
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()
    total, _ = weighted_cross_entropy(hidden, weight, targets, weights_of(7), bias)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(total, hidden, create_graph=True)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_it_can_be_checkpointed_and_its_sum_used_in_place(use_reentrant):
    hidden, weight, targets, bias = problem(7)

    def compute(*inputs):
        return weighted_cross_entropy(*inputs[:2], targets, weights_of(7), inputs[2])[0]

    results = []
    for total in (
        compute(hidden, weight, bias),
        checkpoint(compute, hidden, weight, bias, use_reentrant=use_reentrant),
    ):
        total /= 3  # as the Trainer does
        total.backward()
        results.append([total.detach(), *(tensor.grad for tensor in (hidden, weight, bias))])
        hidden.grad = weight.grad = bias.grad = None
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_targets_give_a_zero_sum_with_zero_gradients(smoothing):
    hidden, weight, targets, bias = problem(4)
    ignored = torch.full_like(targets, IGNORED)
    total, parts = weighted_cross_entropy(hidden, weight, ignored, torch.ones(4), bias, label_smoothing=smoothing)
    total.backward()
    assert total == 0
    assert (parts == 0).all()
    assert all((tensor.grad == 0).all() for tensor in (hidden, weight, bias))


@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_rounds_only_the_products(autocast):
    hidden, weight, targets, bias = problem(1024, vocab=16, dtype=torch.float32)
    hidden, weight, bias = (tensor.detach().bfloat16().float().requires_grad_() for tensor in (hidden, weight, bias))
    row_weights = torch.full((1024,), 0.5)
    total, _ = brute_force(hidden.double(), weight.double(), targets, row_weights, bias.double())
    exact = [total, *torch.autograd.grad(total, (hidden, weight, bias))]
    errors = []
    for num_chunks in (1, 64):
        inputs = (hidden, weight, bias)
        if not autocast:
            inputs = tuple(tensor.detach().bfloat16().requires_grad_() for tensor in inputs)
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            patch.setattr(losses, "LOGITS_PER_CHUNK", 1024 // num_chunks * 16)
            total, parts = weighted_cross_entropy(*inputs[:2], targets, row_weights, inputs[2])
            rows = token_cross_entropy(*inputs[:2], targets, inputs[2])
        assert parts.dtype == total.dtype == torch.float32
        torch.testing.assert_close(parts, rows.detach(), rtol=1e-6, atol=1e-6)
        found = [total, *torch.autograd.grad(total, inputs)]
        assert [one.dtype for one in found[1:]] == [tensor.dtype for tensor in inputs]
        pairs = zip(found, exact, strict=True)
        errors.append([((one - other).norm() / other.norm()).item() for one, other in pairs])
    for alone, chunked in zip(*errors, strict=True):
        assert chunked < 1.5 * alone + 1e-5 < 0.01


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize(("offset", "factor", "rows"), [(3.0, 1.0, 60_000), (30.0, 1000.0, 300), (0.0, 1e-8, 300)])
def test_in_float16_gradients_of_many_rows_and_of_large_and_small_weights_are_exact_to_rounding(
    offset, factor, rows, autocast
):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 4, generator=generator) + offset
    weight, row_weights = torch.randn(VOCAB, 4, generator=generator) / 4, torch.full((rows,), factor)
    targets = torch.randint(VOCAB, (rows,), generator=generator)
    targets[: rows // 4] = 0
    inputs = [tensor if autocast else tensor.half() for tensor in (hidden, weight)]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    whole = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        total, _ = weighted_cross_entropy(*inputs, targets, row_weights)
    scale = 64 / (rows * factor)  # the mean of the losses, times the scale of a gradient scaler
    found = torch.autograd.grad(total * scale, inputs)
    expected = torch.autograd.grad(brute_force(*whole, targets, row_weights.double(), None)[0] * scale, whole)
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other).norm() < 0.01 * other.norm()
