import math

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithFlattening, set_seed

from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.masked_diffusion.rows import DiffusionCollator
from hf_targets.maths.losses import IGNORED
from tests.masked_diffusion.models import clean_ids, make_mdlm
from tests.masked_diffusion.training import InOrder, bound, make_trainer, masked_blocks
from tests.trainer_runs import assert_same, losses, weights


def test_the_logged_loss_is_the_bound_of_the_batch_for_each_of_its_labels_the_first_with_them(tmp_path):
    rows = masked_blocks(8)
    trainer = make_trainer(tmp_path, None, rows, kind=InOrder, per_device_train_batch_size=8, max_steps=1)
    trainer.train()
    names = ("input_ids", "attention_mask", "labels", "timesteps")
    output = make_mdlm()(**{name: torch.tensor(rows[name][:]) for name in names})
    kept = (torch.tensor(rows["labels"][:]) != IGNORED) & (torch.tensor(rows["attention_mask"][:]) == 1)
    entry = losses(trainer)[0]
    assert entry["loss"] == entry["loss_nelbo"] == pytest.approx(output.row_nelbos.sum().item() / int(kept.sum()))


@pytest.mark.parametrize("draws", [1, 3])
def test_an_evaluation_reports_the_bound_of_the_averaged_weights_over_all_labels(draws, tmp_path):
    options = {"evaluation_draws": draws, "evaluation_seed": 5, "per_device_eval_batch_size": 2, "eval_steps": 2}
    trainer = make_trainer(tmp_path, max_steps=2, ema_decay=0.5, eval_strategy="steps", **options)
    trainer.train()
    found = bound(trainer.model, trainer.eval_dataset, draws, seed=5)
    logged = next(entry for entry in trainer.state.log_history if "eval_nelbo" in entry)
    trainer.args.per_device_eval_batch_size = 7
    for metrics in (logged, trainer.evaluate()):
        assert metrics["eval_nelbo"] == metrics["eval_loss"] == pytest.approx(found.nelbo, rel=1e-5)
        assert metrics["eval_perplexity"] == pytest.approx(math.exp(metrics["eval_nelbo"]))
        assert metrics["eval_word_perplexity"] == pytest.approx(found.per_word, rel=1e-4)
        if draws > 1:
            assert math.exp(metrics["eval_nelbo"] + metrics["eval_nelbo_margin"]) == pytest.approx(found.interval[1])
        error = metrics.get("eval_nelbo_standard_error")
        assert error == (None if draws == 1 else pytest.approx(found.standard_error, rel=1e-3))


def test_a_test_figure_has_draws_of_its_own_number(tmp_path):
    trainer = make_trainer(tmp_path, ema_decay=None, evaluation_draws=1, test_draws=3)
    metrics, found = (
        trainer.evaluate(metric_key_prefix="test_more"),
        bound(trainer.model, trainer.eval_dataset, draws=3),
    )
    assert metrics["test_more_nelbo"] == pytest.approx(found.nelbo, rel=1e-5)
    assert "eval_nelbo_standard_error" not in trainer.evaluate()


def test_evaluating_and_saving_change_nothing_in_training(tmp_path):
    ends = []
    for options in ({}, {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "save_steps": 1}):
        trainer = make_trainer(tmp_path, make_mdlm(dropout=0.2), ema_decay=0.5, **options)
        trainer.train()
        ends.append((weights(trainer.model), [entry["loss"] for entry in losses(trainer)]))
    assert_same(ends[0][0], ends[1][0], rtol=0, atol=0)
    assert ends[0][1] == ends[1][1]


@pytest.mark.parametrize("tokenizer", [None, word_level_tokenizer(["the cat\n"])], ids=["none", "words"])
def test_rows_of_different_lengths_are_padded_on_the_right(tokenizer, tmp_path):
    rows = [{"input_ids": clean_ids(length, seed=length).tolist()} for length in (5, 9, 2, 7)]
    ragged = Dataset.from_list([{**row, "labels": row["input_ids"]} for row in rows])
    trainer = make_trainer(tmp_path, train=ragged, evaluation=ragged, tokenizer=tokenizer)
    trainer.train()
    found = bound(trainer.model, ragged)
    assert found.num_tokens == 23
    assert trainer.evaluate()["eval_nelbo"] == pytest.approx(found.nelbo, rel=1e-5)


def test_packed_rows_take_the_steps_of_padded_ones_and_are_evaluated_alike(tmp_path):
    rows, found = masked_blocks(8), []
    for padding_free in (False, True):
        collator = DiffusionCollator(padding_free=padding_free)
        options = {"data_collator": collator, "per_device_train_batch_size": 4, "max_steps": 2, "optim": "sgd"}
        model = make_mdlm(time_conditioning=True)
        trainer = make_trainer(tmp_path, model, rows, kind=InOrder, ema_decay=None, **options)
        trainer.train()
        found.append([entry["loss"] for entry in losses(trainer)] + [trainer.evaluate()["eval_nelbo"]])
        assert len(found[-1]) == 3
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_collator_that_takes_first_tokens_from_the_targets_is_refused(tmp_path):
    with pytest.raises(ValueError, match="padding_free=True"):
        make_trainer(tmp_path, data_collator=DataCollatorWithFlattening())


def test_a_stream_is_trained_on_as_the_same_rows_in_order(tmp_path):
    rows, ends = masked_blocks(8), []
    for data in (rows, rows.to_iterable_dataset()):
        set_seed(0)
        trainer = make_trainer(tmp_path, None, data, kind=InOrder, per_device_train_batch_size=4, max_steps=2)
        trainer.train()
        ends.append([entry["loss"] for entry in losses(trainer)])
    assert ends[0] == ends[1] and len(ends[0]) == 2
