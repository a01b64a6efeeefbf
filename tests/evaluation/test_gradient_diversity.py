"""Gradient diversity against sums written out."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hf_targets import gradient_diversity
from tests.awd_lstm.models import make_awd_lstm
from tests.crammed_bert.models import make_crammed_bert
from tests.masked_diffusion.models import make_mdlm
from tests.masked_diffusion.models import masked_batch as mdlm_batch
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_masked import make_masked_model, masked_batch
from tests.tiny_models import make_any


def text(rows=3, time=12):
    ids = token_ids(rows, time)
    return {"input_ids": ids, "labels": ids}


def rows_of(batch):
    return [{name: value[row : row + 1] for name, value in batch.items()} for row in range(len(batch["input_ids"]))]


MODELS = {
    "gpt2": (lambda: make_backbone("gpt2"), text),
    "difference": (lambda: make_any("gpt2", "difference"), text),
    "conditional": (lambda: make_any("gpt2", "conditional"), text),
    "difference-reformer": (lambda: make_any("reformer", "difference"), text),
    "lstm": (make_awd_lstm, text),
    "mdlm": (make_mdlm, mdlm_batch),
    "masked": (make_masked_model, masked_batch),
    "crammed": (make_crammed_bert, masked_batch),
}
"""A model and its batch."""


def by_hand(model, rows):
    gradients = []
    for row in rows:
        model = copy.deepcopy(model)
        model.zero_grad()
        model(**row).loss.backward()
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
        gradients.append(torch.cat([one.flatten() for one in grads]).double())
    return float(sum(one.square().sum() for one in gradients) / sum(gradients).square().sum())


@pytest.mark.parametrize("name", MODELS)
def test_it_is_equation_14_for_every_kind_of_model(name):
    make, batch = MODELS[name]
    model, batch = make().double(), batch()
    found = gradient_diversity(model, batch)
    assert found == pytest.approx(by_hand(model, rows_of(batch)), rel=1e-9)
    assert all(one.grad is None for one in model.parameters())
    before = [torch.full_like(one, 2.0) for one in model.parameters()]
    for one, kept in zip(model.parameters(), before, strict=True):
        one.grad = kept
    assert gradient_diversity(model, batch) == found
    assert all(one.grad is kept and (kept == 2).all() for one, kept in zip(model.parameters(), before, strict=True))


def test_rows_that_are_not_alike_are_given_one_by_one():
    rows = [text(1, 9), text(1, 12)]
    plain = make_backbone("gpt2").double()
    assert gradient_diversity(plain, rows) == pytest.approx(by_hand(plain, rows), rel=1e-9)


class Linear(nn.Module):
    """The loss of a sample is its product with the weights, so that the sample is its gradient."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, samples, **kwargs):
        return {"loss": (samples @ self.weight).sum()}


@given(n=st.integers(2, 6), size=st.integers(1, 8), seed=st.integers(0, 99))
def test_its_limits(n, size, seed):
    samples = torch.randn(n, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    model = Linear(size)
    found = gradient_diversity(model, {"samples": samples})
    assert found == pytest.approx(float(samples.square().sum() / samples.sum(0).square().sum()))
    assert found >= 1 / n - 1e-12  # the sum of n vectors is at most so long
    same = gradient_diversity(model, {"samples": samples[:1].expand(n, -1)})
    assert same == pytest.approx(1 / n)
    wide = Linear(n)
    assert gradient_diversity(wide, {"samples": torch.eye(n, dtype=torch.float64)}) == pytest.approx(1)


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="eager"), None])
def test_a_compiled_model_is_measured_as_it_was_written(wrap):
    model, batch = make_any("gpt2", "difference").double(), text()
    expected = gradient_diversity(model, batch)
    if wrap is None:
        model.compile(backend="eager")
    assert gradient_diversity(model if wrap is None else wrap(model), batch) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e25])
def test_gradients_of_any_size_are_measured(scale):
    samples = scale * torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    model = Linear(2).float()
    assert gradient_diversity(model, {"samples": samples}) == pytest.approx(6 / 8, rel=1e-5)


def test_frozen_weights_are_left_out_and_tied_ones_count_once():
    model, batch = make_backbone("gpt2").double(), text()
    model.transformer.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert gradient_diversity(model, batch) == pytest.approx(by_hand(model, rows_of(batch)), rel=1e-9)


def test_a_model_that_returns_tuples_has_the_same_and_a_count_of_items_changes_nothing():
    model, batch = make_any("gpt2", "difference").double(), text()
    expected = gradient_diversity(model, batch)
    assert gradient_diversity(model, {**batch, "num_items_in_batch": 7}) == expected
    model.config.return_dict = False
    assert gradient_diversity(model, batch) == expected


def test_dropout_is_drawn_only_if_asked_for_and_from_a_fork():
    model, batch = make_awd_lstm(input_dropout=0.3), text()
    state, mode = torch.random.get_rng_state(), model.training
    first, again = (gradient_diversity(model, batch, dropout=True) for _ in range(2))
    torch.manual_seed(5)
    other = gradient_diversity(model, batch, dropout=True)
    assert first == again != other and model.training is mode
    torch.random.set_rng_state(state)
    gradient_diversity(model, batch, dropout=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert gradient_diversity(model.train(), batch) == gradient_diversity(model.eval(), batch)


@pytest.mark.parametrize(
    ("model", "batch", "told"),
    [
        (Linear(2), {"samples": torch.ones(1, 2)}, "1 rows"),
        (Linear(2), {"samples": torch.ones(2, 2), "other": torch.ones(3)}, "one row"),
        (Linear(2).requires_grad_(False), {"samples": torch.ones(2, 2)}, "trainable"),
        (Linear(2), {"samples": torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()}, "give rows"),
        (Linear(2), {"samples": torch.tensor([[1.0, 0.0], [float("inf"), 2.0]]).double()}, "finite"),
        (make_backbone("gpt2"), {"input_ids": token_ids(2, 5)}, "a loss"),
    ],
    ids=["one row", "unequal", "frozen", "zero", "infinite", "unlabelled"],
)
def test_what_cannot_be_measured_is_told(model, batch, told):
    with pytest.raises(ValueError, match=told):
        gradient_diversity(model, batch)
