import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from hf_targets.training import comparison
from tests.programs import ROOT
from tests.recipes.running import run_recipe, small_text

FINETUNE = ["--max_train_words", "600", "--num_train_epochs", "1", "--rows", "plain", "wdr", "--seeds", "3"]
STEPS = ["--save_strategy", "steps", "--save_steps", "2", "--eval_strategy", "steps", "--eval_steps", "2"]
PHRASES = [
    "--max_train_words",
    "1500",
    "--logging_steps",
    "1",
    "--rows",
    '{"ours": {}}',
    "--save_total_limit",
    "2",
    *STEPS,
]


def run(recipe: str, *arguments: object) -> str:
    return run_recipe(recipe, "--disable_tqdm", "true", "--dataset", small_text(), *arguments)


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", ["../x", "/{}/x", "", ".", "..", "a/b"])
def test_a_row_name_may_not_leave_the_output_folder(name, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "kept").touch()
    rows = json.dumps({name.format(tmp_path): None})
    with pytest.raises(ValueError, match="rows are names of folders"):
        run("train_mdlm_curve", "--rows", rows, "--output_dir", tmp_path / "out", "--max_train_words", 300)
    assert (tmp_path / "x" / "kept").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("recipe", "settings", "told"),
    [
        ("train_mdlm_curve", "rows: {}", "rows must name at least one model, got none"),
        ("train_mdlm_curve", "rows: []", "rows must be a JSON object, got '[]'"),
        ("train_mdlm_curve", "rows: {a: null, A: {}}", "rows must have names that differ"),
        ("train_mdlm_curve", "rows: {results.json: null}", "must not have the name of another output"),
        ("train_mdlm_curve", "rows: {a: 3}", "a must have the fields of a curve"),
        ("finetune_gptneo_wdr", "rows: []", "rows must name at least one model, got none"),
        ("finetune_gptneo_wdr", "rows: [wdr, wdr]", "rows must have names that differ"),
        ("train_draft_heads", "model_name_or_path: none\nkinds: []", "kinds must name at least one model, got none"),
        ("train_draft_heads", "model_name_or_path: none\nkinds: [wdr, wdr]", "kinds must have names that differ"),
        ("finetune_gptneo_wdr", "seeds: []", "seeds must name at least one seed, got none"),
        ("train_mdlm_curve", "seeds: [1, 1]", "seeds must differ, as the same seed gives the same run again"),
        ("train_small_lm", "seed: 1", "seed is for a single training; give seeds in its place"),
        ("train_small_lm", "architecture: lstm", "architecture must be one of gpt2, tensorized, reformer, got lstm"),
        (
            "train_small_lm",
            "architecture: reformer\nblock_size: 100",
            "must be a multiple of a Reformer's chunk_length",
        ),
        ("train_small_lm", "paper_leaky: true", "paper_leaky is of architecture tensorized, got it with gpt2"),
        (
            "search_multitoken",
            "architecture: tensorized\npaper_leaky: true",
            "a search compares perplexities, and those of models with paper_leaky cannot be compared",
        ),
        ("train_small_lm", "targets: [magic]", "targets must be of embedding and difference, got magic"),
    ],
)
def test_rows_that_cannot_be_trained_are_told_before_anything_is_read(recipe, settings, told, tmp_path, monkeypatch):
    (tmp_path / "settings.yaml").write_text(f"{settings}\noutput_dir: {tmp_path / 'out'}\n")
    monkeypatch.setattr(sys, "argv", [f"recipes/{recipe}.py", str(tmp_path / "settings.yaml")])
    with pytest.raises(ValueError, match=re.escape(told)):
        runpy.run_path(str(ROOT / "recipes" / f"{recipe}.py"), run_name="__main__")
    assert not (tmp_path / "out").exists()


def test_a_run_overwritten_killed_and_resumed_has_rows_of_its_own_settings_alone(tmp_path, monkeypatch):
    out = tmp_path / "out"
    run("finetune_gptneo_wdr", *FINETUNE, "--output_dir", out)
    (out / "notes.txt").touch()
    train_run = comparison.train_run

    def killed(name, *args, **kwargs):
        if name == "wdr":
            raise KeyboardInterrupt
        return train_run(name, *args, **kwargs)

    changed = [*FINETUNE, "--output_dir", out, "--learning_rate", 3e-3]
    monkeypatch.setattr(comparison, "train_run", killed)
    with pytest.raises(KeyboardInterrupt):
        run("finetune_gptneo_wdr", *changed, "--overwrite_output_dir", "true")
    assert {path.name for path in out.iterdir()} == {"run.json", "plain-seed3", "results.json", "notes.txt"}
    monkeypatch.setattr(comparison, "train_run", train_run)
    with pytest.raises(ValueError, match=r"learning_rate was 0\.003 and is now 0\.001; give those that were"):
        run("finetune_gptneo_wdr", *FINETUNE, "--output_dir", out, "--resume_from_checkpoint", "true")
    run("finetune_gptneo_wdr", *changed, "--resume_from_checkpoint", "true")
    for row in results(out)["rows"]:
        rates = {entry["learning_rate"] for entry in row["history"] if "learning_rate" in entry}
        assert rates <= {3e-3}
        assert list((out / f"{row['name']}-seed3").glob("checkpoint-*"))
    assert (out / "notes.txt").exists()


def test_a_run_resumed_begins_or_goes_on_and_never_from_an_older_one(tmp_path):
    out, resume = tmp_path / "out", ["--resume_from_checkpoint", "true"]
    folder = out / "ours-seed0"

    def steps(*arguments: object) -> list[int]:
        run("train_dynamic_vocab", *PHRASES, "--output_dir", out, *arguments)
        return [entry["step"] for entry in results(out)["rows"][0]["history"] if "loss" in entry]

    assert steps(*resume, "--max_steps", 4) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"max_steps was 4 and is now 3; give those"):
        steps(*resume, "--max_steps", 3)
    assert steps("--overwrite_output_dir", "true", "--max_steps", 3) == [1, 2, 3]
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    (folder / "checkpoint-3" / "optimizer.pt").write_bytes(b"")
    assert steps(*resume, "--max_steps", 3) == [1, 2, 3]


def test_heads_are_not_resumed(tmp_path):
    with pytest.raises(ValueError, match="is not resumed; leave out resume_from_checkpoint"):
        run("train_draft_heads", "--output_dir", tmp_path / "out", "--resume_from_checkpoint", "true")
    assert not (tmp_path / "out").exists()
