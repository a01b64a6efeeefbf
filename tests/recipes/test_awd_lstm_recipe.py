"""The recipe that trains AWD-LSTMs: its tables, the models that it leaves, a killed run, and what it refuses."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import AwdLstmForCausalLM
from hf_targets.training import comparison
from tests.recipes.running import run_recipe, small_text
from tests.training.test_model_card import run_code

SMALL = ["--dataset", small_text(), "--max_train_words", "1500", "--disable_tqdm", "true", "--cache_window", "20"]
ROWS = {
    "plain": {},
    "plain-finetuned": {"finetunes": "plain"},
    "cosine": {"cosine_weight": 1},
    "cosine-finetuned": {"cosine_weight": 1, "finetunes": "cosine"},
}


def run(*arguments: object) -> str:
    return run_recipe("train_awd_lstm", *SMALL, *arguments)


def scores_of(folder) -> dict:
    return json.loads((folder / "scores.json").read_text())["scores"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lstm") / "out"
    return folder, run("--seeds", "0", "1", "--output_dir", folder)


def test_models_are_compared_with_those_of_as_much_training(trained):
    folder, printed = trained
    assert printed.count("| model | word perplexity | with cache | mean cosine, % | effective rank |") == 1
    assert "plain-finetuned from plain, cosine-finetuned from cosine" in printed
    plain, finetuned = (printed.index(f"| against {name} |") for name in ("plain", "plain-finetuned"))
    assert "| cosine |" in printed[plain:finetuned] and "| cosine-finetuned |" in printed[finetuned:]
    assert "| plain-finetuned |" not in printed[plain:finetuned]
    scores = scores_of(folder)
    assert {name: len(seeds) for name, seeds in scores.items()} == dict.fromkeys(ROWS, 2)
    for one in (one for seeds in scores.values() for one in seeds):
        assert one["with cache"] <= one["word perplexity"]  # a cache without weight is among those to choose from
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert [(row["name"], row["seed"]) for row in rows] == [(name, seed) for seed in (0, 1) for name in ROWS]
    for row in rows:
        has_part = any("loss_cosine" in entry for entry in row["history"])
        assert has_part == row["name"].startswith("cosine")


def test_the_saved_models_write_and_the_finetuned_ones_go_on_from_the_others(trained):
    folder, printed = trained
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert "Loading weights" not in printed
    for name in ROWS:
        model = AutoModelForCausalLM.from_pretrained(folder / f"{name}-seed1")
        tokenizer = AutoTokenizer.from_pretrained(folder / f"{name}-seed1")
        assert isinstance(model, AwdLstmForCausalLM)
        text = model.generate(**tokenizer("The import", return_tensors="pt"), max_new_tokens=4)
        assert text.shape[1] == 4 + len(tokenizer("The import")["input_ids"])
    assert "past_key_values" in (folder / "plain-seed0" / "README.md").read_text()
    run_code(folder / "plain-seed0", folder)
    rows = {(row["name"], row["seed"]): row for row in json.loads((folder / "results.json").read_text())["rows"]}
    for kind in ("plain", "cosine"):
        for seed in (0, 1):
            before, after = rows[kind, seed], rows[f"{kind}-finetuned", seed]
            first, second = before["history"], after["history"]
            assert next(entry["loss"] for entry in second if "loss" in entry) < next(
                entry["loss"] for entry in first if "loss" in entry
            )


def test_a_killed_run_goes_on_and_ends_with_the_figures_of_an_unbroken_one(trained, tmp_path, monkeypatch):
    whole, out = trained[0], tmp_path / "out"
    train_run, given = comparison.train_run, ("--seeds", "0", "1", "--output_dir", out)

    def killed(name, *args, seed, **kwargs):
        if (name, seed) == ("cosine-finetuned", 0):
            raise KeyboardInterrupt
        return train_run(name, *args, seed=seed, **kwargs)

    monkeypatch.setattr(comparison, "train_run", killed)
    with pytest.raises(KeyboardInterrupt):
        run(*given)
    monkeypatch.setattr(comparison, "train_run", train_run)
    run(*given, "--resume_from_checkpoint", "true")
    for name, seeds in scores_of(whole).items():
        for one, other in zip(seeds, scores_of(out)[name], strict=True):
            assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--rows", '{"a": {"finetunes": "b"}, "b": {}}'], "finetunes of row a must name a row before it, of none"),
        (["--rows", '{"a": {"cosine_weight": -1}}'], r"row a: cosine_weight \(gamma\) must be 0 or more"),
        (["--rows", '{"a": {"gamma": 1}}'], "row a has no such field: gamma; there are cosine_weight, finetunes"),
        (["--rows", '{"a": 1}'], r"row a must be an object, such as \{\} for a plain model, got 1"),
        (["--rows", "{}"], 'rows must name a model, such as {"plain": {}}, got none'),
        (["--cache_window", "0"], "window must be an integer, 1 or more, got 0"),
        (["--weight_dropout", "1"], r"weight_dropout must be in \[0, 1\), got 1.0"),
        (["--bptt", "0"], "bptt must be an integer, 1 or more, got 0"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_written(given, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run(*given, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()
