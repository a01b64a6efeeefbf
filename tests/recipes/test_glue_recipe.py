"""The recipe that fine-tunes on GLUE, and its table."""

import json

import pytest
from transformers import BertConfig, BertForMaskedLM

from hf_targets import train_masking_tokenizer
from tests.lab.glue_files import write_glue
from tests.programs import ROOT
from tests.recipes.running import run_recipe

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(write_glue(tmp_path / "data")))
    tokenizer = train_masking_tokenizer(["film number is good bad It rains in wet 1 2 3"], vocab_size=300)
    for seed in (0, 1):
        BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SMALL)).save_pretrained(tmp_path / f"plain-seed{seed}")
        tokenizer.save_pretrained(tmp_path / f"plain-seed{seed}")
    return tmp_path


def test_a_model_of_each_seed_is_fine_tuned_and_all_scores_are_in_one_table(models):
    place, smoke = f"{models}/plain-seed{{seed}}", "recipes/settings/tables/evaluate_glue/smoke.yaml"
    rows = json.dumps({"plain": {"model_name_or_path": place}, "wdr": {"model_name_or_path": f"{models}/plain-seed0"}})
    given = ["--rows", rows, "--tasks", "rte", "sst2", "--seeds", 1, "--output_dir", models / "out"]
    printed = run_recipe("tables/evaluate_glue", *given, "--disable_tqdm", "true", settings=ROOT / smoke)
    assert "| model | rte | sst2 | average |" in printed and "| against plain |" in printed
    results = json.loads((models / "out" / "plain-seed1" / "results.json").read_text())
    assert results["average"] == (results["rte"] + results["sst2"]) / 2
    alone = ["--model_name_or_path", place, "--tasks", "rte", "sst2", "--seed", 1, "--output_dir", models / "alone"]
    assert str(results) in run_recipe("evaluate_glue", *alone, "--disable_tqdm", "true")
