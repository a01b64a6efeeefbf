import re

import pytest
from transformers import PrinterCallback
from transformers.utils import logging

from hf_targets import MultiTokenTrainer, MultiTokenTrainingArguments, log_briefly
from hf_targets.training.brief_log import BriefLog, is_brief, without_bars_of_files
from tests.multitoken.test_trainer import blocks
from tests.tiny_models import make_model


def make_trainer(folder, **options):
    settings = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "no"}
    settings |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "ensemble_weights": [0.0, 0.2]}
    args = MultiTokenTrainingArguments(str(folder), **{**settings, **options})
    return MultiTokenTrainer(model=make_model("gpt2"), args=args, train_dataset=blocks(8), eval_dataset=blocks(4))


def test_a_log_is_a_short_line_with_the_parts_of_the_loss_and_an_evaluation_one_more(tmp_path, capsys):
    trainer = make_trainer(tmp_path)
    log_briefly(trainer)
    trainer.train()
    trainer.evaluate()  # after the training: the caller reports it
    lines = capsys.readouterr().out.splitlines()
    parts = "  ".join(["loss x", "next_token x", "head_1 x", "head_2 x", "head_3 x"])
    assert [re.sub(r" [\d.e-]+(?= |$)", " x", line) for line in lines] == [
        f"  step 2/4  {parts}  lr x",
        f"  step 4/4  {parts}  lr x",
        "  step 4/4  validation  loss x  perplexity x  perplexity_ensemble x",
    ]
    assert max(map(len, lines)) < 100


def test_without_asking_a_trainer_keeps_the_habit_of_transformers(tmp_path, capsys):
    trainer = make_trainer(tmp_path)
    assert not is_brief(trainer)
    trainer.train()
    assert capsys.readouterr().out.startswith("{'loss': ")


def test_asking_twice_prints_once(tmp_path):
    trainer = make_trainer(tmp_path)
    log_briefly(trainer)
    log_briefly(trainer)
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert kinds.count(BriefLog) == 1 and PrinterCallback not in kinds


def test_the_phase_of_the_heads_alone_logs_as_the_training_does(tmp_path, capsys):
    trainer = make_trainer(tmp_path, head_warmup_steps=2, max_steps=2, eval_strategy="no")
    log_briefly(trainer)
    trainer.train()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  loss")[0] for line in lines] == ["  step 2/2", "  step 2/2"]


@pytest.mark.parametrize(("options", "enabled", "shown"), [({}, True, True), ({}, False, False), (None, True, False)])
def test_the_bar_follows_the_switch_of_transformers_and_the_arguments(options, enabled, shown, tmp_path, monkeypatch):
    monkeypatch.setattr(logging, "_tqdm_active", enabled)
    trainer = make_trainer(tmp_path, disable_tqdm=options is None)
    log_briefly(trainer)
    (callback,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, BriefLog))
    assert callback._shows_bar == shown


@pytest.mark.parametrize("enabled", [True, False])
def test_bars_of_files_are_off_for_a_while_and_then_as_they_were(enabled, monkeypatch):
    monkeypatch.setattr(logging, "_tqdm_active", enabled)
    with pytest.raises(KeyError), without_bars_of_files():
        assert not logging.is_progress_bar_enabled()
        raise KeyError
    assert logging.is_progress_bar_enabled() == enabled
