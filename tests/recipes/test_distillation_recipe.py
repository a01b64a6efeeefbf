"""The recipe that writes a teacher's translations: what it leaves, and what it refuses."""

import json

import pytest

from hf_targets import load_pairs
from tests.recipes.running import run_recipe

SMALL = ["--max_train_pairs", "20", "--max_eval_pairs", "4"]


def test_the_translations_of_a_model_are_a_training_set(tmp_path):
    rows = ["--rows", '{"plain": {}}', "--disable_tqdm", "true", "--num_beams", "1"]
    run_recipe("train_translation", *SMALL, *rows, "--output_dir", str(tmp_path / "teacher"))
    out = tmp_path / "out"
    teacher = str(tmp_path / "teacher" / "plain-seed0")
    printed = run_recipe("distill_translations", *SMALL, "--teacher", teacher, "--output_dir", str(out))
    assert f"--dataset {out}" in printed
    columns = {"source_column": "source", "target_column": "target"}
    found = load_pairs(str(out), source_lang="en", target_lang="reversed", **columns)
    assert found.num_rows == {"train": 20, "validation": 4, "test": 4}
    assert json.loads((out / "distillation.json").read_text())["teacher"] == teacher
    with pytest.raises(ValueError, match="other values of settings"):
        run_recipe("distill_translations", *SMALL, "--teacher", teacher, "--output_dir", str(out), "--num_beams", "3")


def test_a_teacher_must_be_named(tmp_path):
    with pytest.raises(ValueError, match="what translates is a teacher; give --teacher"):
        run_recipe("distill_translations", *SMALL, "--output_dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
