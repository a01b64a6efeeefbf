"""A training that does not notice that its gradient diversity is measured."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments, default_data_collator
from transformers.trainer_pt_utils import LabelSmoother

from hf_targets import (
    GradientDiversityCallback,
    MultiTokenMaskedTrainer,
    MultiTokenMaskedTrainingArguments,
    MultiTokenSeq2SeqTrainer,
    MultiTokenSeq2SeqTrainingArguments,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    gradient_diversity,
)
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.evaluation.diversity_callback import SmoothedLoss
from tests.awd_lstm.training import make_trainer
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_masked import make_masked_backbone, masked_batch
from tests.tiny_models import make_any
from tests.tiny_seq2seq import make_pair_backbone
from tests.trainer_runs import CHECKPOINTING


def with_dropout(model, p):
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = p
    return model


def trained(folder, model, every, rows=None, **options):
    rows = rows or [{"input_ids": ids, "labels": ids} for ids in token_ids(24, 10)]
    args = {"max_steps": 3, "per_device_train_batch_size": 3, "logging_steps": 2, "report_to": "none", **options}
    args = TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **args)
    trainer = Trainer(copy.deepcopy(model), args, train_dataset=rows)
    if every:
        trainer.add_callback(GradientDiversityCallback(trainer, every))
    trainer.train()
    return trainer


REENTRANT = {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": True}}
MODELS = {
    "difference": lambda: make_any("gpt2", "difference"),
    "gpt2": lambda: make_backbone("gpt2"),
    "reformer": lambda: repair_reformer(make_backbone("reformer")),
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("difference", {"bf16": True, "gradient_accumulation_steps": 2}),
        ("difference", REENTRANT),
        ("gpt2", {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2}),
        ("reformer", {"gradient_accumulation_steps": 2}),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_training_does_not_notice_that_it_is_measured(name, options, tmp_path):
    model = with_dropout(MODELS[name](), 0.2)
    measured, plain = (trained(tmp_path / str(every), model, every, **options) for every in (2, 0))
    assert all(map(torch.equal, measured.model.parameters(), plain.model.parameters()))
    logged = {entry["step"]: entry["gradient_diversity"] for entry in measured.state.log_history if len(entry) == 3}
    rows = 3 * options.get("gradient_accumulation_steps", 1)
    assert list(logged) == [0, 2] and all(1 / rows <= value < 2 for value in logged.values())
    losses = [[one["loss"] for one in trainer.state.log_history if "loss" in one] for trainer in (measured, plain)]
    assert losses[0] == losses[1] and not measured.model._forward_pre_hooks


class OfLogits(nn.Module):
    """A plain model with the cross-entropy of its logits, written out."""

    def __init__(self, model, smoothing, shifted):
        super().__init__()
        self.model, self.smoothing, self.shifted = model, smoothing, shifted

    def forward(self, labels, **inputs):
        logits = self.model(**inputs, labels=labels).logits
        if self.shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=self.smoothing)}


def causal_run(folder, **options):
    rows = [{"input_ids": ids, "labels": ids} for ids in token_ids(3, 10)]
    return MultiTokenTrainer(make_backbone("gpt2"), MultiTokenTrainingArguments(folder, **options), train_dataset=rows)


def masked_run(folder, **options):
    batch = masked_batch()
    rows = [{name: value[row] for name, value in batch.items()} for row in range(3)]
    args = MultiTokenMaskedTrainingArguments(folder, **options)
    return MultiTokenMaskedTrainer(
        make_masked_backbone(), args, train_dataset=rows, data_collator=default_data_collator
    )


def pairs_run(folder, **options):
    rows = [{"input_ids": ids, "labels": ids[:6].flip(0)} for ids in token_ids(3, 10)]
    args = MultiTokenSeq2SeqTrainingArguments(folder, **options)
    return MultiTokenSeq2SeqTrainer(make_pair_backbone(), args, train_dataset=rows, data_collator=default_data_collator)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("run", [causal_run, masked_run, pairs_run])
def test_a_plain_model_is_measured_with_the_loss_that_our_trainer_trains(run, smoothing, tmp_path):
    options = {"max_steps": 1, "use_cpu": True, "report_to": "none", "learning_rate": 0.0, "logging_steps": 1}
    trainer = run(
        str(tmp_path), **options, label_smoothing_factor=smoothing, gradient_diversity_steps=1, disable_tqdm=True
    )
    with_dropout(trainer.model, 0.0)
    (batch,) = [{name: one for name, one in found.items()} for found in trainer.get_train_dataloader()]
    trainer.train()
    log = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
    written = OfLogits(trainer.model.eval(), smoothing, shifted=run is causal_run)
    assert log["loss"] == pytest.approx(written(**batch)["loss"].item(), rel=1e-4)
    assert log["gradient_diversity"] == pytest.approx(gradient_diversity(written, batch), rel=1e-4)


@pytest.mark.compiled
def test_smoothed_labels_of_a_compiled_plain_model_are_those_of_the_next_token(tmp_path):
    options = {"max_steps": 1, "use_cpu": True, "report_to": "none", "logging_steps": 1, "disable_tqdm": True}
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
    trainer = causal_run(str(tmp_path), **options, **compiled, label_smoothing_factor=0.3)
    (batch,) = list(trainer.get_train_dataloader())
    expected = OfLogits(make_backbone("gpt2"), 0.3, shifted=True)(**batch)["loss"].item()
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)


def test_rows_of_one_long_text_are_measured_from_their_states(tmp_path):
    losses = []
    for every in (2, 0):
        trainer = make_trainer(tmp_path / str(every), max_steps=6, logging_steps=1)
        if every:
            trainer.add_callback(GradientDiversityCallback(trainer, every))
        trainer.train()
        log = trainer.state.log_history
        losses.append([entry["loss"] for entry in log if "loss" in entry])
        found = [entry["gradient_diversity"] for entry in log if "gradient_diversity" in entry]
        assert len(found) == (3 if every else 0) and all(0.25 <= value < 2 for value in found)
    assert losses[0] == losses[1]


def test_a_step_without_a_target_is_passed_over_with_one_warning(tmp_path, caplog):
    nothing = torch.full((10,), -100)
    rows = [{"input_ids": ids, "labels": nothing} for ids in token_ids(24, 10)]
    trainer = trained(tmp_path, make_any("gpt2", "difference"), 1, rows=rows)
    assert trainer.state.global_step == 3
    assert not any("gradient_diversity" in entry for entry in trainer.state.log_history)
    assert caplog.text.count("No gradient diversity is logged for step 0") == 1


def test_a_model_with_smoothed_loss_draws_dropout_as_it_does_itself():
    model = with_dropout(make_backbone("gpt2"), 0.3)
    smoothed = SmoothedLoss(model, partial(LabelSmoother(epsilon=1e-9), shift_labels=True))
    batch = {name: token_ids(3, 9) for name in ("input_ids", "labels")}
    found = [gradient_diversity(smoothed, batch, dropout=dropout) for dropout in (True, False)]
    assert found[0] != pytest.approx(found[1], rel=1e-3)
    assert found[1] == pytest.approx(gradient_diversity(model, batch), rel=1e-4)
    assert not model.training
