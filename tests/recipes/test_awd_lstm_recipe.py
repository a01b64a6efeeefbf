"""The recipe that trains an AWD-LSTM, and the table that compares, finetunes and caches them."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import AwdLstmForCausalLM
from tests.lab.test_card import run_code
from tests.recipes.running import run_recipe, small_text

SMALL = ["--dataset", small_text(), "--max_train_words", "500", "--disable_tqdm", "true", "--cache_window", "20"]
SMALL += ["--logging_steps", "2"]
ROWS = ("plain", "plain-finetuned", "cosine", "cosine-finetuned")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lstm") / "out"
    return folder, run_recipe("tables/train_awd_lstm", *SMALL, "--seeds", "0", "--output_dir", folder)


def results(folder):
    return json.loads((folder / "results.json").read_text())


def losses(folder):
    log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in log if "loss" in entry]


def test_models_are_compared_with_those_of_as_much_training(trained):
    folder, printed = trained
    plain, finetuned = (printed.index(f"| against {name} |") for name in ("plain", "plain-finetuned"))
    assert "| cosine |" in printed[plain:finetuned] and "| cosine-finetuned |" in printed[finetuned:]
    assert "| plain-finetuned |" not in printed[plain:finetuned]
    for name in ROWS:
        found = results(folder / f"{name}-seed0")
        assert found["word_perplexity_cache"] <= found["word_perplexity"]  # no cache is among those to choose from
        has_part = all("loss_cosine" in entry for entry in losses(folder / f"{name}-seed0"))
        assert has_part == name.startswith("cosine")
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_saved_models_write_and_the_finetuned_ones_go_on_from_the_others(trained):
    folder, _ = trained
    model = AutoModelForCausalLM.from_pretrained(folder / "cosine-finetuned-seed0")
    prompt = AutoTokenizer.from_pretrained(folder / "cosine-finetuned-seed0")("The import", return_tensors="pt")
    assert isinstance(model, AwdLstmForCausalLM)
    assert model.generate(**prompt, max_new_tokens=4).shape[1] == 4 + prompt["input_ids"].shape[1]
    run_code(folder / "plain-seed0", folder)
    for kind in ("plain", "cosine"):
        before, after = (losses(folder / f"{name}-seed0")[0]["loss"] for name in (kind, f"{kind}-finetuned"))
        assert after < before
