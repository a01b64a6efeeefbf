"""The recipe that trains models which predict blocks: its tables, the models that it leaves, and what it refuses."""

import json

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import SemiAutoregressiveForCausalLM
from tests.recipes.running import run_recipe, small_text
from tests.training.test_model_card import run_code

SMALL = ["--dataset", small_text(), "--max_train_words", "600", "--disable_tqdm", "true"]
ROWS = {"words-2": {"ngram_size": 2}, "curves-3": {"curve": {"num_control_points": 5, "num_curves": 2}}, "words-3": {}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks") / "out"
    options = ["--rows", json.dumps(ROWS), "--seeds", "0", "1", "--output_dir", str(folder)]
    return folder, run_recipe("train_semi_autoregressive", *SMALL, *options)


def test_each_number_of_words_has_a_table_of_its_own(trained):
    folder, printed = trained
    heads = [line for line in printed.splitlines() if line.startswith("| model |")]
    assert [head.count("perplexity_") for head in heads] == [2, 3]
    assert all("| perplexity |" in head for head in heads)
    assert "| perplexity against curves-3 |" in printed and "against words-2" not in printed
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert [(row["name"], row["seed"]) for row in rows] == [(name, seed) for seed in (0, 1) for name in ROWS]
    for row in rows:
        words = [value for name, value in row["test"].items() if name.startswith("perplexity_")]
        assert row["test"]["perplexity"] == pytest.approx(sum(words) / len(words))


def test_the_saved_models_write_and_their_dependence_is_measured(trained):
    folder, _ = trained
    rows = json.loads((folder / "results.json").read_text())["rows"]
    for name in ROWS:
        model = AutoModelForCausalLM.from_pretrained(folder / f"{name}-seed1")
        tokenizer = AutoTokenizer.from_pretrained(folder / f"{name}-seed1")
        assert isinstance(model, SemiAutoregressiveForCausalLM)
        text = model.generate(**tokenizer("The import", return_tensors="pt"), max_new_tokens=4, tokens_per_step=2)
        assert text.shape == (1, 4 + len(tokenizer("The import")["input_ids"]))
        assert "tokens_per_step=2" in run_code(folder / f"{name}-seed1", folder)
        card = ModelCard.load(folder / f"{name}-seed1" / "README.md")
        (result,) = card.data.eval_results
        of_next_word = [row["test"]["perplexity_1"] for row in rows if (row["name"], row["seed"]) == (name, 1)]
        assert (result.metric_name, result.metric_value) == ("perplexity", pytest.approx(of_next_word[0]))
        assert "*perplexity* the mean over words 1 to N" in card.text
    found = json.loads((folder / "dependence.json").read_text())["rows"]
    assert {name: len(seeds) for name, seeds in found.items()} == dict.fromkeys(ROWS, 2)
    assert [one["disturbance"] for one in found["words-3"][0]] == ["dropout", "noise"]
    for figure in ("dependence.png", "learning_curves.png"):
        assert (folder / figure).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--rows", '{"a": {"ngram_size": 1}}'], r"row a: ngram_size \(N\) must be 2 or more, got 1"),
        (["--rows", '{"a": {"backbone": {}}}'], "row a may have ngram_size and curve, got backbone"),
        (["--rows", "{}"], "rows must name a model, such as"),
        (["--dependence_samples", "2"], "dependence_samples must be 4 or more, got 2"),
        (["--hidden_size", "33"], "hidden_size must be a multiple of num_heads"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_written(given, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("train_semi_autoregressive", *SMALL, *given, "--output_dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
