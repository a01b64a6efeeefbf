"""The recipe that writes a teacher's translations."""

import torch
from transformers import AutoModelForSeq2SeqLM

from hf_targets import load_pairs
from tests.gaussian_diffusion.test_distillation import make_teacher
from tests.recipes.running import run_recipe

SMALL = ["--max_train_pairs", "20", "--max_eval_pairs", "4", "--num_beams", "1"]


def test_the_translations_of_a_model_are_a_training_set(tmp_path):
    model, tokenizer, _ = make_teacher()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "teacher")
    out = tmp_path / "out"
    printed = run_recipe("distill_translations", *SMALL, "--teacher", tmp_path / "teacher", "--output_dir", out)
    assert f"--dataset {out}" in printed
    columns = {"source_column": "source", "target_column": "target"}
    found = load_pairs(str(out), source_lang="en", target_lang="reversed", **columns)
    assert found.num_rows == {"train": 20, "validation": 4, "test": 4}
    assert torch.equal(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "teacher").lm_head.weight, model.lm_head.weight)
