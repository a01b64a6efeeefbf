"""Gradient diversity against sums written out, and a training that does not notice that it is measured."""

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import Trainer, TrainingArguments

from hf_targets import GradientDiversityCallback, gradient_diversity
from hf_targets.evaluation import gradient_diversity as module
from tests.awd_lstm.models import make_awd_lstm
from tests.crammed_bert.models import make_crammed_bert
from tests.masked_diffusion.models import make_mdlm
from tests.masked_diffusion.models import masked_batch as mdlm_batch
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_masked import make_masked_model, masked_batch
from tests.tiny_models import make_any, training_inputs


def text(rows=3, time=12):
    ids = token_ids(rows, time)
    return {"input_ids": ids, "labels": ids}


def rows_of(batch):
    return [{name: value[row : row + 1] for name, value in batch.items()} for row in range(len(batch["input_ids"]))]


MODELS = {
    "gpt2": (lambda: make_backbone("gpt2"), text, True),
    "llama": (lambda: make_backbone("llama"), text, True),
    "difference": (lambda: make_any("gpt2", "difference"), text, True),
    "embedding": (lambda: make_any("llama", "embedding"), text, True),
    "conditional": (lambda: make_any("gpt2", "conditional"), text, True),
    "lstm": (make_awd_lstm, text, False),
    "mdlm": (make_mdlm, mdlm_batch, False),
    "masked": (make_masked_model, masked_batch, False),
    "crammed": (make_crammed_bert, masked_batch, False),
}
"""A model, its batch, and whether its samples are computed together."""


def by_hand(model, rows):
    gradients = []
    for row in rows:
        loss = model(**row).loss
        parameters = [one for one in model.parameters() if one.requires_grad]
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        gradients.append(torch.cat([one.flatten() for one in found]).double())
    return float(sum(one.square().sum() for one in gradients) / sum(gradients).square().sum())


@pytest.mark.parametrize("name", MODELS)
def test_it_is_equation_14_for_every_kind_of_model(name, caplog):
    make, batch, together = MODELS[name]
    model, batch = make().double(), batch()
    with caplog.at_level("DEBUG", logger=module.__name__):
        found = [gradient_diversity(model, batch, rows_at_once=count) for count in (1, 2, 8)]
    assert found == pytest.approx([by_hand(model, rows_of(batch))] * 3, rel=1e-9)
    assert ("row by row" in caplog.text) is not together
    assert all(one.grad is None for one in model.parameters())


def test_models_whose_rows_are_not_alike_are_given_one_by_one():
    model, whole = make_any("gpt2", "phrases").double(), training_inputs("phrases")
    with pytest.raises(ValueError, match="give a sequence of batches of one row"):
        gradient_diversity(model, whole)
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


@settings(max_examples=50, deadline=None)
@given(n=st.integers(2, 6), size=st.integers(1, 8), seed=st.integers(0, 99), at_once=st.integers(1, 7))
def test_its_limits(n, size, seed, at_once):
    samples = torch.randn(n, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    model = Linear(size)
    found = gradient_diversity(model, {"samples": samples}, rows_at_once=at_once)
    assert found == pytest.approx(float(samples.square().sum() / samples.sum(0).square().sum()))
    assert found >= 1 / n - 1e-12  # the sum of n vectors is at most so long
    same = gradient_diversity(model, {"samples": samples[:1].expand(n, -1)}, rows_at_once=at_once)
    assert same == pytest.approx(1 / n)
    wide = Linear(n)
    assert gradient_diversity(wide, {"samples": torch.eye(n, dtype=torch.float64)}) == pytest.approx(1)


def test_frozen_weights_are_left_out_and_tied_ones_count_once():
    model, batch = make_backbone("gpt2").double(), text()
    model.transformer.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert gradient_diversity(model, batch) == pytest.approx(by_hand(model, rows_of(batch)), rel=1e-9)


def test_the_count_of_a_whole_batch_is_not_a_samples():
    model, batch = make_any("gpt2", "difference").double(), text()
    assert gradient_diversity(model, {**batch, "num_items_in_batch": 7}) == gradient_diversity(model, batch)


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
    ("model", "batch", "options", "told"),
    [
        (Linear(2), {"samples": torch.ones(1, 2)}, {}, "give two rows or more, got 1"),
        (Linear(2), {"samples": torch.ones(2, 2), "other": torch.ones(3)}, {}, "one row for each sample"),
        (Linear(2), {"samples": torch.ones(2, 2).double()}, {"rows_at_once": 0}, "rows_at_once must be 1 or more"),
        (Linear(2).requires_grad_(False), {"samples": torch.ones(2, 2)}, {}, "no trainable parameter"),
        (Linear(2), {"samples": torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()}, {}, "and that is 0.0"),
        (make_backbone("gpt2"), {"input_ids": token_ids(2, 5)}, {}, "must return a loss"),
    ],
)
def test_what_cannot_be_measured_is_told(model, batch, options, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        gradient_diversity(model, batch, **options)


def trained(folder, model, every, **options):
    rows = [{"input_ids": ids, "labels": ids} for ids in token_ids(24, 10)]
    args = {"max_steps": 5, "per_device_train_batch_size": 3, "logging_steps": 2, "report_to": "none", **options}
    trainer = Trainer(
        copy.deepcopy(model),
        TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **args),
        train_dataset=rows,
    )
    if every:
        trainer.add_callback(GradientDiversityCallback(trainer, every))
    trainer.train()
    return trainer


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_a_training_does_not_notice_that_it_is_measured(options, tmp_path):
    model = make_any("gpt2", "difference")
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.2
    measured, plain = (trained(tmp_path / str(every), model, every, **options) for every in (2, 0))
    assert all(map(torch.equal, measured.model.parameters(), plain.model.parameters()))
    logged = {entry["step"]: entry["gradient_diversity"] for entry in measured.state.log_history if len(entry) == 3}
    rows = 3 * options.get("gradient_accumulation_steps", 1)
    assert list(logged) == [0, 2, 4] and all(1 / rows <= value < 2 for value in logged.values())
    losses = [[one["loss"] for one in trainer.state.log_history if "loss" in one] for trainer in (measured, plain)]
    assert losses[0] == losses[1] and not measured.model._forward_pre_hooks


def test_the_first_step_is_that_of_the_function(tmp_path):
    model = make_any("gpt2", "embedding")
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    trainer = trained(tmp_path, model, 100, max_steps=1)
    batch = next(kwargs for kwargs in seen if len(kwargs["input_ids"]) == 3)
    expected = gradient_diversity(model, {name: batch[name] for name in ("input_ids", "labels")})
    (found,) = [one["gradient_diversity"] for one in trainer.state.log_history if "gradient_diversity" in one]
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_loss_that_trainer_computes_itself_is_told_once(tmp_path, caplog):
    trainer = trained(tmp_path, make_backbone("gpt2"), 1, label_smoothing_factor=0.1)
    assert not any("gradient_diversity" in entry for entry in trainer.state.log_history)
    assert caplog.text.count("No gradient diversity is logged") == 1


@pytest.mark.parametrize(("every", "num_rows", "told"), [(0, None, "every must be 1"), (1, 1, "num_rows must be 2")])
def test_wrong_numbers_of_the_callback_are_told(every, num_rows, told):
    with pytest.raises(ValueError, match=told):
        GradientDiversityCallback(None, every, num_rows=num_rows)  # pyright: ignore
