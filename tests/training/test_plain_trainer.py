"""Our models under Transformers' own Trainer: evaluation, the best model, smoothed labels, no target."""

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import Trainer, TrainingArguments, default_data_collator

from hf_targets import MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.maths.losses import IGNORED
from tests import tiny_models
from tests.mdlm_models import clean_ids, make_mdlm
from tests.tiny_models import VOCAB, make_any, phrase_batch, token_ids
from tests.trainer_runs import SHORT, weights

KINDS = ("difference", "embedding", "conditional", "phrases", "mdlm")
kinds = pytest.mark.parametrize("kind", KINDS)


def make_model(kind: str):
    return make_mdlm() if kind == "mdlm" else make_any("gpt2", kind)


def blocks(num_rows: int, length: int = 12, *, targets: bool = True) -> Dataset:
    ids = clean_ids(num_rows, length) % 5 + 1
    labels = ids if targets else torch.full_like(ids, IGNORED)
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})


def make_trainer(kind: str, folder, model=None, rows=None, **arguments) -> Trainer:
    compute_metrics = arguments.pop("compute_metrics", None)
    options = {**SHORT, "report_to": "none", "per_device_eval_batch_size": 3, **arguments}
    return Trainer(
        model=make_model(kind) if model is None else model,
        args=TrainingArguments(output_dir=str(folder), **options),
        train_dataset=blocks(16) if rows is None else rows,
        eval_dataset=blocks(7),
        data_collator=tiny_models.make_collator() if kind == "phrases" else default_data_collator,
        compute_metrics=compute_metrics,
    )


@kinds
def test_an_evaluation_gives_the_loss_and_the_logits(kind, tmp_path):
    seen = {}

    def count(predictions):
        seen["shape"] = predictions.predictions.shape
        return {"rows": len(predictions.label_ids)}

    trainer = make_trainer(kind, tmp_path, compute_metrics=count)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] > 0 and metrics["eval_rows"] == 7
    assert seen["shape"][0] == 7 and seen["shape"][2] >= VOCAB


@kinds
def test_the_best_model_is_loaded_at_the_end(kind, tmp_path):
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = make_trainer(kind, tmp_path, load_best_model_at_end=True, save_total_limit=1, **steps)
    trainer.train()
    evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluated) == 2 and trainer.state.best_metric == min(evaluated)
    best = type(trainer.model).from_pretrained(trainer.state.best_model_checkpoint)
    ours, saved = weights(trainer.model), weights(best)
    assert all(torch.equal(ours[name], saved[name]) for name in ours)


@kinds
def test_smoothed_labels_are_refused_where_they_would_train_a_part_of_the_model(kind, tmp_path):
    trainer = make_trainer(kind, tmp_path, label_smoothing_factor=0.1)
    before = weights(trainer.model)
    for run in (trainer.train, trainer.evaluate):
        with pytest.raises(ValueError, match="Trainer keeps them for label_smoothing_factor or compute_loss_func"):
            run()
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trainer.model).items())


@pytest.mark.parametrize("kind", ["difference", "phrases"])
def test_trainer_shifts_labels_that_it_smooths_where_it_may_use_the_next_token_alone(kind, tmp_path):
    model, ids = make_model(kind), token_ids(2, 9)
    model.accepts_loss_kwargs = False
    trainer = make_trainer(kind, tmp_path, model, label_smoothing_factor=0.1)
    loss = trainer.compute_loss(model, {"input_ids": ids, "labels": ids})
    logits, targets = model(ids).logits[:, :-1], ids[:, 1:]
    expected = nn.functional.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


@kinds
@pytest.mark.parametrize("accumulation", [1, 2])
def test_steps_without_a_target_leave_the_weights_as_they_are(kind, accumulation, tmp_path):
    rows = blocks(16, targets=False)
    trainer = make_trainer(kind, tmp_path, rows=rows, max_steps=2, gradient_accumulation_steps=accumulation)
    if kind == "phrases":
        batch = phrase_batch(4)
        for name in ("labels", "phrase_targets"):
            batch[name] = torch.full_like(batch[name], IGNORED)
        trainer.data_collator = lambda rows: dict(batch)
    before = weights(trainer.model)
    trainer.train()
    assert [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] == [0.0, 0.0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trainer.model).items())


def test_ours_and_the_plain_trainer_take_the_same_steps(tmp_path):
    losses = []
    for cls, args in ((Trainer, TrainingArguments), (MultiTokenTrainer, MultiTokenTrainingArguments)):
        torch.manual_seed(0)
        trainer = cls(
            model=make_model("difference"),
            args=args(output_dir=str(tmp_path), **SHORT, report_to="none"),
            train_dataset=blocks(16),
            data_collator=default_data_collator,
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
