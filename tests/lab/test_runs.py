"""Runs of a table: one a row and seed, in an order, none twice, none of other settings, unbroken by kill -9."""

import json
import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from transformers import TrainingArguments

from lab.runs import compare, owned, parse_table, run_alone, run_table
from lab.text import TextSettings
from tests.programs import ROOT, run_program
from tests.recipes.running import run_recipe, small_text
from tests.trainer_runs import assert_same


@dataclass
class Setup:
    size: int = 1


def make_recipe():
    """Return a recipe that trains nothing, and the list of its runs."""
    runs = []

    def main(setup, args):
        runs.append((setup.size, args.seed))
        return {"perplexity": setup.size + args.seed}

    return SimpleNamespace(SETTINGS=(Setup, TrainingArguments), main=main), runs


ROWS = {"small": {}, "large": {"size": 10}}


def test_every_row_is_trained_with_every_seed_and_once(tmp_path):
    recipe, runs = make_recipe()
    found = compare(recipe, {"report_to": "none"}, ROWS, [3, 5], tmp_path)
    assert runs == [(1, 3), (10, 3), (1, 5), (10, 5)]
    assert found == {"small": [{"perplexity": 4}, {"perplexity": 6}], "large": [{"perplexity": 13}, {"perplexity": 15}]}
    assert json.loads((tmp_path / "large-seed5" / "results.json").read_text()) == {"perplexity": 15}
    assert compare(recipe, {"report_to": "none"}, ROWS, [3, 5, 6], tmp_path)["small"][0] == {"perplexity": 4}
    assert runs[4:] == [(1, 6), (10, 6)]


def test_a_run_alone_and_a_table_end_with_where_their_results_lie(tmp_path, monkeypatch, capsys):
    recipe, _ = make_recipe()
    told = []
    for name in ("train_difformer.py", "nothing.py"):
        monkeypatch.setattr(sys, "argv", [str(ROOT / "recipes" / name), "--output_dir", str(tmp_path / name)])
        run_alone(recipe.main, *recipe.SETTINGS, description="")
        told.append(capsys.readouterr().out.splitlines()[-1])
    with_table = "Next: compare several with recipes/tables/train_difformer.py."
    assert told == [f"Results: {tmp_path / 'train_difformer.py'}. {with_table}", f"Results: {tmp_path / 'nothing.py'}."]
    (tmp_path / "table.yaml").write_text(json.dumps({"output_dir": str(tmp_path / "table"), "rows": ROWS}))
    monkeypatch.setattr(sys, "argv", ["table.py", str(tmp_path / "table.yaml")])
    run_table(lambda table: str(len(compare(recipe, **vars(table)))), recipe, description="")
    assert f"Runs: {tmp_path / 'table'}" in capsys.readouterr().out.splitlines()[-1]


def test_a_run_alone_takes_the_checkpoints_of_an_earlier_one_only_to_go_on_with_it(tmp_path, monkeypatch):
    steps = []

    def main(setup, args):
        steps.append(args.max_steps)
        (tmp_path / f"checkpoint-{len(steps)}").mkdir()
        (tmp_path / f"checkpoint-{len(steps)}" / "trainer_state.json").write_text("{}")

    def start(*given):
        monkeypatch.setattr(sys, "argv", ["script.py", "--output_dir", str(tmp_path), "--max_steps", *given])
        run_alone(main, Setup, TrainingArguments, description="")

    start("1", "--learning_rate", "0.1")
    with pytest.raises(ValueError, match="checkpoints of an earlier run"):
        start("2", "--learning_rate", "0.1")
    for resumed in ("true", str(tmp_path / "checkpoint-1")):
        with pytest.raises(ValueError, match=r"learning_rate was 0\.1 and is 0\.2"):
            start("2", "--learning_rate", "0.2", "--resume_from_checkpoint", resumed)
        start("2", "--learning_rate", "0.1", "--resume_from_checkpoint", resumed)
    assert steps == [1, 2, 2]
    with pytest.raises(ValueError, match="checkpoints of an earlier run"):  # of one that is in another folder
        start("2", "--resume_from_checkpoint", str(tmp_path / "other" / "checkpoint-1"))


def test_a_run_of_other_settings_is_told_and_overwritten_only_if_asked(tmp_path):
    recipe, runs = make_recipe()
    compare(recipe, {"learning_rate": 0.1}, ROWS, [0], tmp_path)
    with pytest.raises(ValueError, match=r"learning_rate was 0\.1 and is 0\.2"):
        compare(recipe, {"learning_rate": 0.2}, ROWS, [0], tmp_path)
    compare(recipe, {"learning_rate": 0.1, "logging_steps": 7}, ROWS, [0], tmp_path)  # changes nothing computed
    assert len(runs) == 2
    compare(recipe, {"learning_rate": 0.2}, ROWS, [0], tmp_path, overwrite=True)
    assert len(runs) == 4


def test_a_folder_that_is_no_run_and_a_row_that_is_no_folder_are_left_alone(tmp_path):
    recipe, runs = make_recipe()
    (tmp_path / "small-seed0").mkdir()
    (tmp_path / "small-seed0" / "notes.txt").touch()
    with pytest.raises(ValueError, match="is no run"):
        compare(recipe, {}, ROWS, [0], tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="folder"):
        compare(recipe, {}, {"../small": {}}, [0], tmp_path)
    with pytest.raises(SystemExit):
        compare(recipe, {}, {"small": {}, "wrong": {"sise": 1}}, [0], tmp_path)
    assert (tmp_path / "small-seed0" / "notes.txt").exists() and not runs


def test_a_table_is_read_from_a_file_and_the_command_line(tmp_path):
    recipe, _ = make_recipe()
    (tmp_path / "t.yaml").write_text(
        "rows: {a: null, b: {size: 2}}\nseeds: [1, 2]\noutput_dir: out\nlearning_rate: 1e-3"
    )
    table = parse_table(recipe, arguments=[str(tmp_path / "t.yaml"), "--seeds", "7", "--only", "b"])
    assert (table.rows, table.seeds, str(table.output_dir)) == ({"b": {"size": 2}}, [7], "out")
    assert table.settings == {"learning_rate": 1e-3}
    with pytest.raises(ValueError, match="rows of a, b, got c"):
        parse_table(recipe, arguments=[str(tmp_path / "t.yaml"), "--only", "b", "c"])
    for rows in ({}, {"a": 5}, {"a": {"plugins": ["code.py"]}}, {"a": {"seed": 3}}):
        with pytest.raises(ValueError, match="settings of their own"):
            parse_table(recipe, arguments=["--rows", json.dumps(rows)])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_in_which_a_process_trains_is_left_to_it(overwrite, tmp_path):
    recipe, runs = make_recipe()
    compare(recipe, {}, {"small": {}}, [0], tmp_path)
    (tmp_path / "small-seed0" / "results.json").unlink()
    with owned(tmp_path / "small-seed0"), pytest.raises(ValueError, match=f"in use by process {os.getpid()} of"):
        compare(recipe, {}, {"small": {}}, [0], tmp_path, overwrite=overwrite)
    assert len(runs) == 1 and (tmp_path / "small-seed0" / "settings.json").is_file()
    compare(recipe, {}, {"small": {}}, [0], tmp_path, overwrite=overwrite)
    assert len(runs) == 2 and not (tmp_path / "small-seed0" / "run.lock").exists()


def test_a_run_that_fails_before_it_writes_leaves_no_folder(tmp_path):
    def fail(setup, args):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        compare(SimpleNamespace(SETTINGS=(Setup, TrainingArguments), main=fail), {}, ROWS, [0], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_runs_of_a_table_and_parts_of_a_run_read_one_text(tmp_path, monkeypatch):
    read, text = [], tmp_path / "text.txt"

    def main(setup, args):
        Path(args.output_dir, "checkpoint-1").mkdir()
        Path(args.output_dir, "checkpoint-1", "trainer_state.json").write_text("{}")
        read.append(setup.load()["train"]["text"][0])
        text.write_text("another\n" * 50)
        return {}

    settings = {"dataset": str(text), "output_dir": str(tmp_path / "alone")}
    text.write_text("one\n" * 50)
    recipe = SimpleNamespace(SETTINGS=(TextSettings, TrainingArguments), main=main)
    compare(recipe, {"dataset": str(text)}, {"a": {}, "b": {"learning_rate": 0.1}}, [0], tmp_path)
    assert read == ["one\n", "one\n"]
    with pytest.raises(ValueError, match="text's digest was"):
        compare(recipe, {"dataset": str(text)}, {"a": {}}, [0], tmp_path)
    assert str(tmp_path) not in (tmp_path / "a-seed0" / "settings.json").read_text()
    text.write_text("one\n" * 50)
    for resumed in (None, "true"):
        given = settings if resumed is None else {**settings, "resume_from_checkpoint": resumed}
        monkeypatch.setattr(sys, "argv", ["script.py", *(f"--{name}={value}" for name, value in given.items())])
        with pytest.raises(ValueError, match="text's digest") if resumed else nullcontext():
            run_alone(main, *recipe.SETTINGS, description="")
    assert len(read) == 3


_KILLED = """
import os, runpy, signal, sys
from transformers import Trainer

def step(self, *arguments, take=Trainer.training_step):
    if self.state.global_step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return take(self, *arguments)

Trainer.training_step = step
del sys.argv[0]
sys.path.insert(0, "recipes")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_run_killed_in_its_training_ends_as_the_unbroken_one(tmp_path):
    script, settings = "recipes/tables/finetune_gptneo_wdr.py", "recipes/settings/tables/finetune_gptneo_wdr/smoke.yaml"
    steps = ["--max_steps", "8", "--save_strategy", "steps", "--save_steps", "2", "--eval_strategy", "steps"]
    steps += ["--eval_steps", "2", "--save_total_limit", "3", "--only", "wdr", "--seeds", "3", "--vocab_size", "400"]
    given = [*steps, "--dataset", small_text(), "--output_dir"]
    broken, whole = tmp_path / "broken" / "wdr-seed3", tmp_path / "whole" / "wdr-seed3"
    done = run_program(_KILLED, script, settings, *given, broken.parent)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (broken / "checkpoint-4").exists() and not (broken / "results.json").exists()
    for folder in (broken, whole):
        run_recipe("tables/finetune_gptneo_wdr", *given, folder.parent)
    # up to rounding: tensors at other addresses may be summed in another order
    assert_same(*(load_file(folder / "model.safetensors") for folder in (broken, whole)), rtol=1e-3, atol=1e-6)
    found, expected = (json.loads((folder / "results.json").read_text()) for folder in (broken, whole))
    assert {**found, "seconds": 0} == pytest.approx({**expected, "seconds": 0}, rel=1e-5)
