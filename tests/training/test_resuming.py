import json
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from hf_targets.training.outputs import TRAINING_NAME
from hf_targets.training.resuming import train
from tests.masked_diffusion import training as diffusion_training
from tests.multitoken.test_trainer import make_trainer
from tests.programs import run_program
from tests.tiny_models import make_model
from tests.trainer_runs import assert_same, run_processes, weights

STEPS = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "perplexity", "greater_is_better": False}


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


def state_of(checkpoint):
    return json.loads((checkpoint / "trainer_state.json").read_text())


@pytest.mark.parametrize("kind", ["heads", "averaged"])
def test_what_was_broken_off_ends_as_unbroken_from_the_newest_whole_checkpoint(kind, tmp_path):
    trainer, counter = make(tmp_path / "run", kind)
    whole = train(trainer, resume=False)
    assert counter.steps == 6
    expected = weights(trainer.model)
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    (tmp_path / "run" / TRAINING_NAME).unlink()
    (tmp_path / "run" / "checkpoint-4" / "optimizer.pt").write_bytes(b"PK")
    trainer, counter = make(tmp_path / "run", kind)
    again = train(trainer, resume=True)
    assert counter.steps == 4
    assert_same(weights(trainer.model), expected, rtol=0, atol=0)
    names = [name for name in whole.history[-2] if name.endswith("perplexity")]
    assert names
    assert [whole.history[-2][name] for name in names] == [again.history[-2][name] for name in names]


def test_a_broken_checkpoint_is_set_aside_so_that_no_whole_one_is_removed_for_it(tmp_path):
    trainer, _ = make(tmp_path)
    train(trainer, resume=False)
    (tmp_path / TRAINING_NAME).unlink()
    for name in ("checkpoint-4/optimizer.pt", "checkpoint-6/model.safetensors"):
        (tmp_path / name).write_bytes(b"PK")
    trainer, _ = make(tmp_path, save_total_limit=1, max_steps=4)
    train(trainer, resume=True)
    left = sorted(path.name for path in tmp_path.glob("*checkpoint*"))
    assert left == ["broken-checkpoint-4", "broken-checkpoint-6", "checkpoint-4"]


def test_from_checkpoints_of_the_model_alone_only_what_is_finished_is_loaded(tmp_path):
    trainer, _ = make(tmp_path, save_only_model=True)
    train(trainer, resume=True)  # there is nothing to go on from
    again, counter = make(tmp_path, save_only_model=True)
    train(again, resume=True)
    assert not counter.steps
    assert_same(weights(again.model), weights(trainer.model))
    shutil.rmtree(tmp_path / "checkpoint-6")
    (tmp_path / TRAINING_NAME).unlink()
    broken, counter = make(tmp_path, save_only_model=True)
    with pytest.raises(ValueError, match="as save_only_model leaves them out; train anew"):
        train(broken, resume=True)
    assert not counter.steps


def test_it_begins_where_there_is_no_checkpoint_yet(tmp_path):
    trainer, counter = make(tmp_path / "run")
    train(trainer, resume=True)
    assert counter.steps == 6


def test_the_seconds_of_all_parts_are_added(tmp_path):
    trainer, _ = make(tmp_path)
    assert 0 < train(trainer, resume=False).seconds < 500
    file, state = tmp_path / "checkpoint-6" / "trainer_state.json", state_of(tmp_path / "checkpoint-6")
    assert 0 < state["stateful_callbacks"]["_Clock"]["args"]["seconds"] < 500
    state = state_of(tmp_path / "checkpoint-4")
    state["stateful_callbacks"]["_Clock"]["args"]["seconds"] = 1000.0
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text(json.dumps(state))
    file.unlink()
    (tmp_path / TRAINING_NAME).unlink()
    trainer, _ = make(tmp_path)
    second = train(trainer, resume=True)
    assert 1000 < second.seconds < 1500
    assert state_of(tmp_path / "checkpoint-6")["stateful_callbacks"]["_Clock"]["args"]["seconds"] > 1000


@pytest.mark.parametrize("kind", ["heads", "averaged"])
@pytest.mark.parametrize("options", [{}, {**BEST, "save_total_limit": 1, "learning_rate": 0.3}])
def test_a_finished_training_is_not_repeated_and_leaves_the_same_weights(kind, options, tmp_path):
    trainer, _ = make(tmp_path, kind, **options)
    first = train(trainer, resume=False)
    if options and kind == "heads":
        assert len(list(tmp_path.glob("checkpoint-*"))) == 1
        assert not (tmp_path / "checkpoint-6").exists()  # the best is not the last, or this shows nothing
    again, counter = make(tmp_path, kind, **options)
    assert train(again, resume=True) == first
    assert counter.steps == 0
    assert_same(weights(again.model), weights(trainer.model), rtol=0, atol=0)
    assert again.args.max_steps == 6  # what results tell of the settings is as it was


@pytest.mark.parametrize("kind", ["heads", "averaged"])
def test_a_training_killed_after_its_last_step_takes_no_further_one(kind, tmp_path):
    trainer, _ = make(tmp_path, kind)
    train(trainer, resume=False)
    (tmp_path / TRAINING_NAME).unlink()
    again, counter = make(tmp_path, kind)
    train(again, resume=True)
    assert counter.steps == 0
    assert_same(weights(again.model), weights(trainer.model), rtol=0, atol=0)
    assert (tmp_path / TRAINING_NAME).exists()


def test_a_training_that_had_stopped_early_stays_stopped(tmp_path):
    options = {**BEST, "learning_rate": 0.3, "max_steps": 12}
    taken, evaluations = [], []
    for resume in (False, True):
        trainer, counter = make(tmp_path, **options)
        trainer.add_callback(EarlyStoppingCallback(1))
        history = train(trainer, resume=resume).history
        taken.append(counter.steps)
        evaluations.append(len([entry for entry in history if "eval_loss" in entry]))
        (tmp_path / TRAINING_NAME).unlink()
    assert 0 < taken[0] < 12
    assert taken[1] == 0
    assert evaluations[0] == evaluations[1]


@pytest.fixture
def ended(tmp_path):
    """Return the folder of a training whose best checkpoint is not its last, its weights and options, as if killed."""
    options = {**BEST, "learning_rate": 0.3}
    trainer, _ = make(tmp_path / "run", **options)
    train(trainer, resume=False)
    assert Path(trainer.state.best_model_checkpoint).name != "checkpoint-6"
    (tmp_path / "run" / TRAINING_NAME).unlink()
    return tmp_path / "run", weights(trainer.model), options


@pytest.mark.parametrize("way", ["moved", "copied", "relative", "the newest alone", "pruned"])
def test_the_best_checkpoint_is_that_of_the_own_folder_wherever_it_is_now(ended, way, tmp_path, monkeypatch):
    folder, expected, options = ended
    best = Path(state_of(folder / "checkpoint-6")["best_model_checkpoint"]).name
    if way == "copied":  # the weights at the old place are others now
        shutil.copytree(folder, tmp_path / "now")
        for checkpoint in folder.glob("checkpoint-*"):
            make_model("gpt2", seed=1).save_pretrained(checkpoint)
    elif way == "the newest alone":
        shutil.copytree(folder / "checkpoint-6", tmp_path / "now" / "checkpoint-6")
    else:
        folder.rename(tmp_path / "now")
    if way == "pruned":
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            (tmp_path / "now" / best / name).unlink()
    monkeypatch.chdir(tmp_path)
    again, counter = make(Path("now") if way == "relative" else tmp_path / "now", **options)
    train(again, resume=True)
    assert counter.steps == 0
    assert_same(weights(again.model), expected, rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_training_without_its_best_checkpoint_is_refused(ended, damage):
    folder, _, options = ended
    best = folder / Path(state_of(folder / "checkpoint-6")["best_model_checkpoint"]).name
    if damage == "gone":
        shutil.rmtree(best)
    else:
        (best / "model.safetensors").write_bytes(b"x" * 100)
    told = (
        rf"ends with the weights of its best checkpoint, and so far that is {re.escape(str(best))}, which is not whole"
    )
    with pytest.raises(ValueError, match=told):
        train(make(folder, **options)[0], resume=True)


def test_more_steps_than_were_taken_are_taken(tmp_path):
    trainer, _ = make(tmp_path)
    train(trainer, resume=False)
    trainer, counter = make(tmp_path, max_steps=8)
    train(trainer, resume=True)
    assert counter.steps == 2


def test_a_training_whose_weights_were_not_saved_is_repeated(tmp_path):
    for resume in (False, True):
        trainer, counter = make(tmp_path, save_strategy="no")
        train(trainer, resume=resume)
        assert counter.steps == 6
    assert not (tmp_path / TRAINING_NAME).exists()


_KILLED = """
import os, signal, sys, torch
from tests.training.test_resuming import make
from hf_targets.training.resuming import train

save = torch.save

def killed(content, file, *args, **kwargs):
    save(content, file, *args, **kwargs)
    if file.endswith("checkpoint-4/" + sys.argv[2]):
        os.truncate(file, os.path.getsize(file) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

torch.save = killed
train(make(sys.argv[1])[0], resume=False)
"""


def run_killed(program, *arguments):
    """Run a program in a process of its own, and return how it ended."""
    done = run_program(program, *arguments)
    print(done.stderr)
    return done.returncode


@pytest.mark.parametrize("file", ["training_args.bin", "rng_state.pth"])
def test_a_training_killed_while_it_saves_ends_as_unbroken(file, tmp_path):
    assert run_killed(_KILLED, tmp_path / "run", file) == -signal.SIGKILL
    assert (tmp_path / "run" / "checkpoint-4" / file).exists()
    trainer, counter = make(tmp_path / "run")
    train(trainer, resume=True)
    assert counter.steps == 4
    unbroken, _ = make(tmp_path / "unbroken")
    train(unbroken, resume=False)
    assert_same(weights(trainer.model), weights(unbroken.model), rtol=0, atol=0)


_KILLED_AMONG_HEADS = """
import os, signal, sys
from hf_targets.multitoken import trainer as multitoken
from tests.training.test_resuming import make
from hf_targets.training.resuming import train

step = multitoken._HeadsAlone.training_step

def killed(self, *args, **kwargs):
    if self.state.global_step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *args, **kwargs)

multitoken._HeadsAlone.training_step = killed
train(make(sys.argv[1], head_warmup_steps=3)[0], resume=False)
"""


def test_a_training_killed_while_its_heads_learn_alone_begins_anew_with_that_phase(tmp_path):
    assert run_killed(_KILLED_AMONG_HEADS, tmp_path / "run") == -signal.SIGKILL
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    resumed, counter = make(tmp_path / "run", head_warmup_steps=3)
    train(resumed, resume=True)
    assert counter.steps == 6
    unbroken, _ = make(tmp_path / "unbroken", head_warmup_steps=3)
    train(unbroken, resume=False)
    assert_same(weights(resumed.model), weights(unbroken.model), rtol=0, atol=0)


_TWO = """
import sys, torch
from pathlib import Path
from tests.training.test_resuming import make
from hf_targets.training.resuming import train
from tests.trainer_runs import weights

folder, options, steps = Path(sys.argv[1]), {"ddp_backend": "gloo"}, []
for part in range(3):
    trainer, counter = make(folder / "run", **options)
    trained = train(trainer, resume=part > 0)
    steps.append(counter.steps)
    if part == 0 and trainer.is_world_process_zero():
        expected = weights(trainer.model)
        (folder / "run" / "training.json").unlink()
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
