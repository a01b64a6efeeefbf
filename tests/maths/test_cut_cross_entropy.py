"""The kernel is asked for what it can do, and its losses are weighted as those of the function around it."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from hf_targets.maths import cut_cross_entropy, weighted_loss
from hf_targets.maths.cut_cross_entropy import kernel_for
from hf_targets.maths.weighted_loss import weighted_cross_entropy


def kernel(hidden, weight, targets, *, bias, reduction):
    """Do what the package's kernel does, with logits."""
    assert reduction == "none"
    assert {hidden.dtype, weight.dtype} == {torch.bfloat16} and (bias is None or bias.dtype == torch.bfloat16)
    logits = (hidden @ weight.T).float()
    return F.cross_entropy(logits if bias is None else logits + bias.float(), targets, reduction="none")


@pytest.mark.parametrize("with_bias", [True, False])
def test_sums_losses_and_gradients_are_those_without_the_kernel(with_bias, monkeypatch):
    torch.manual_seed(0)
    targets, row_weights = torch.randint(0, 11, (7,)), torch.rand(7)
    targets[2] = -100
    found = []
    for chosen in (None, kernel):
        monkeypatch.setattr(weighted_loss, "kernel_for", lambda *given, chosen=chosen: chosen)
        torch.manual_seed(1)
        hidden, weight = torch.randn(7, 6, requires_grad=True), torch.randn(11, 6, requires_grad=True)
        bias = torch.randn(11, requires_grad=True) if with_bias else None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total, rows = weighted_cross_entropy(hidden, weight, targets, row_weights, bias)
        assert not rows.requires_grad
        total.backward()
        found.append([total.detach(), rows, hidden.grad, weight.grad, *([bias.grad] if bias is not None else [])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_it_is_taken_for_half_precision_on_cuda_without_smoothing_where_it_is_installed(monkeypatch):
    package = SimpleNamespace(linear_cross_entropy=kernel)
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", package)
    monkeypatch.setattr(cut_cross_entropy, "_installed", lambda: True)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert kernel_for(gpu, torch.bfloat16, 0.0) is kernel
    assert kernel_for(gpu, torch.bfloat16, 0.1) is None
    assert kernel_for(gpu, torch.float32, 0.0) is None
    assert kernel_for(cpu, torch.bfloat16, 0.0) is None
    monkeypatch.setattr(cut_cross_entropy, "_installed", lambda: False)
    assert kernel_for(gpu, torch.bfloat16, 0.0) is None
