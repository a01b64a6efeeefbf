"""What a run tells of its training."""

from types import SimpleNamespace

import pytest
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_targets import TargetTrainingArguments
from hf_targets.training.trainer import TargetTrainer
from lab.results import timed_training
from tests.tiny_models import make_backbone


class Clock(TrainerCallback):
    """A clock that goes a second a step."""

    def __init__(self):
        self.now = 0.0

    def on_step_end(self, *_, **__):
        self.now += 1


@pytest.mark.parametrize(("kind", "given"), [(Trainer, TrainingArguments), (TargetTrainer, TargetTrainingArguments)])
def test_the_seconds_of_a_resumed_training_are_those_of_all_its_parts(kind, given, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("lab.results.time", SimpleNamespace(monotonic=lambda: clock.now))
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8
    for steps, begun in ((3, None), (5, "checkpoint-3"), (5, "checkpoint-5")):
        args = given(str(tmp_path), max_steps=steps, save_steps=1, report_to="none", use_cpu=True, disable_tqdm=True)
        args.resume_from_checkpoint = begun and str(tmp_path / begun)
        assert timed_training(kind(make_backbone("gpt2"), args, train_dataset=rows, callbacks=[clock])) == steps
        clock.now += 100  # until it goes on
