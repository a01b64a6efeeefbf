"""A training that was broken off ends as the unbroken one, from the newest whole checkpoint."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from hf_targets.training import loss_parts
from hf_targets.training.checkpoints import newest_checkpoint
from tests.masked_diffusion import training as diffusion_training
from tests.multitoken.test_trainer import make_trainer
from tests.tiny_models import make_model
from tests.trainer_runs import assert_same, run_processes, weights

STEPS = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}


class Counter(TrainerCallback):
    """Counts the steps that are taken."""

    steps = 0

    def on_step_end(self, *args, **kwargs):
        self.steps += 1


def make(folder, kind="heads", **options):
    """Return a trainer whose six steps are half of an epoch, and the counter of its steps."""
    options = {**STEPS, "max_steps": 6, "per_device_train_batch_size": 2, **options}
    if kind == "averaged":
        trainer = diffusion_training.make_trainer(folder, ema_decay=0.9, **options)
    else:
        model = make_model("gpt2")
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.2
        trainer = make_trainer(folder, model, **options)
    counter = Counter()
    trainer.add_callback(counter)
    return trainer, counter


@pytest.mark.parametrize(("kind", "damage"), [("heads", "without its end"), ("averaged", "cut short")])
def test_what_was_broken_off_ends_as_unbroken_from_the_newest_whole_checkpoint(kind, damage, tmp_path):
    trainer, counter = make(tmp_path, kind)
    trainer.train()
    expected, state = weights(trainer.model), tmp_path / "checkpoint-4" / "trainer_state.json"
    shutil.rmtree(tmp_path / "checkpoint-6")
    if damage == "cut short":
        state.write_text(state.read_text()[:100])
    else:
        state.unlink()
    assert Path(newest_checkpoint(tmp_path)).name == "checkpoint-2"
    again, counter = make(tmp_path, kind)
    again.train(resume_from_checkpoint=True)
    assert counter.steps == 4
    assert_same(weights(again.model), expected, rtol=0, atol=0)
    named = [[entry for entry in one.state.log_history if "eval_loss" in entry] for one in (trainer, again)]
    of_text = [[{k: v for k, v in entry.items() if "perplexity" in k} for entry in log] for log in named]
    assert of_text[0] == of_text[1]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("averaged", {}),
        ("heads", {"load_best_model_at_end": True, "save_total_limit": 1, "learning_rate": 0.3}),
    ],
)
def test_a_finished_training_is_not_repeated_and_leaves_the_same_weights(kind, options, tmp_path):
    trainer, _ = make(tmp_path / "run", kind, **options)
    trainer.train()
    (tmp_path / "run").rename(tmp_path / "moved")  # the best checkpoint is the one of the folder as it is now
    again, counter = make(tmp_path / "moved", kind, **options)
    if options and kind == "heads":
        assert not (tmp_path / "moved" / "checkpoint-6").exists()  # the best is not the last
    again.train(resume_from_checkpoint=True)
    assert counter.steps == (2 if options and kind == "heads" else 0)  # the last checkpoint was not kept
    assert_same(weights(again.model), weights(trainer.model), rtol=0, atol=0)
    if not options:
        more, counter = make(tmp_path / "moved", kind, max_steps=8)
        more.train(resume_from_checkpoint=True)
        assert counter.steps == 2


def test_a_training_that_had_stopped_early_stays_stopped_unless_it_is_given_more_patience(tmp_path):
    taken, evaluations = [], []
    for resume, patience in ((None, 1), (True, 1), (True, None), (None, 1), (True, 100)):
        trainer, counter = make(tmp_path, load_best_model_at_end=True, learning_rate=0.3, max_steps=12)
        if patience is not None:
            trainer.add_callback(EarlyStoppingCallback(patience))
        trainer.train(resume_from_checkpoint=resume)
        taken.append(counter.steps)
        evaluations.append([entry for entry in trainer.state.log_history if "eval_loss" in entry])
        if patience is None:
            shutil.rmtree(tmp_path)
    left = 12 - taken[0]
    assert 0 < left < 12 and taken == [taken[0], 0, left, taken[0], left]
    assert len(evaluations[0]) == len(evaluations[1])


def test_without_a_whole_checkpoint_there_is_nothing_to_resume(tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(ValueError, match="no whole checkpoint"):
        make(tmp_path)[0].train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="find a valid checkpoint at"):
        make(tmp_path)[0].train(resume_from_checkpoint=str(tmp_path / "typo"))


def test_logs_without_a_bar_tell_the_seconds_of_this_run_so_far_and_those_left(capsys, monkeypatch, tmp_path):
    make(tmp_path, max_steps=2)[0].train()
    monkeypatch.setattr(loss_parts, "monotonic", iter(range(0, 1000, 30)).__next__)  # 30 seconds between two looks
    make(tmp_path, max_steps=5)[0].train(resume_from_checkpoint=True)
    told = re.findall(r"'loss'.*'seconds': (\d+), 'seconds_left': (\d+)", capsys.readouterr().out)
    assert told[-3:] == [("30", "60"), ("60", "30"), ("90", "0")]


_TWO = """
import sys, torch
from pathlib import Path
from tests.training.test_resuming import make
from tests.trainer_runs import weights

folder, options, steps = Path(sys.argv[1]), {"ddp_backend": "gloo"}, []
for part in range(3):
    trainer, counter = make(folder / "run", **options)
    trainer.train(resume_from_checkpoint=part > 0)
    steps.append(counter.steps)
    if part == 0 and trainer.is_world_process_zero():
        expected = weights(trainer.model)
        (folder / "run" / "checkpoint-6" / "rng_state_1.pth").unlink()
    trainer.accelerator.wait_for_everyone()
if trainer.is_world_process_zero():
    torch.save((expected, weights(trainer.model), steps), folder / "result.pt")
"""


def test_two_processes_go_on_from_the_same_checkpoint(tmp_path):
    run_processes(_TWO, tmp_path)
    expected, found, steps = torch.load(tmp_path / "result.pt", weights_only=False)
    assert steps == [6, 2, 0]
    assert_same(found, expected, rtol=0, atol=0)
