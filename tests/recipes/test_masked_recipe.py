"""The recipe that trains masked models: its table, the models and backbones that it leaves, and what it refuses."""

import json

import pytest
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, BertForMaskedLM

from hf_targets import MultiTokenForMaskedLM
from tests.recipes.running import run_recipe, small_text
from tests.training.test_model_card import run_code

SMALL = [
    "--dataset",
    small_text(),
    "--max_train_words",
    "1500",
    "--disable_tqdm",
    "true",
    "--num_train_epochs",
    "1",
    "--logging_steps",
    "1",
]
ROWS = {"plain": None, "wdr": {"ngram_size": 1}, "alone": {"ngram_size": 2, "masked_only": True}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked") / "out"
    options = ["--rows", json.dumps(ROWS), "--seeds", "0", "1", "--output_dir", str(folder)]
    return folder, run_recipe("train_masked_lm", *SMALL, *options)


def test_all_models_are_in_one_table_and_their_parts_in_the_log(trained):
    folder, printed = trained
    assert printed.count("| model | perplexity |") == 1 and "| perplexity against plain | alone |" in printed
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert [(row["name"], row["seed"]) for row in rows] == [(name, seed) for seed in (0, 1) for name in ROWS]
    for row in rows:
        parts = {name for entry in row["history"] for name in entry if name.startswith("loss_")}
        heads = (ROWS[row["name"]] or {"ngram_size": 0})["ngram_size"]
        expected = {"loss_masked_token", *(f"loss_head_{n}" for n in range(1, heads + 1))}
        assert parts == (expected if heads else set())


def test_the_saved_models_fill_masks_and_their_backbones_are_fine_tuned(trained):
    folder, _ = trained
    for name, kind in (("plain", BertForMaskedLM), ("wdr", MultiTokenForMaskedLM), ("alone", MultiTokenForMaskedLM)):
        place = folder / f"{name}-seed1"
        assert type(AutoModelForMaskedLM.from_pretrained(place)) is kind
        assert run_code(place, folder).strip()
        tuned = AutoModelForSequenceClassification.from_pretrained(place / "backbone", num_labels=2)
        tokenizer = AutoTokenizer.from_pretrained(place / "backbone")
        assert tokenizer.tokenize("the [MASK] is")[-2:] == [" [MASK]", "Ġis"]  # takes its space, as tokens do
        pair = tokenizer("The import", "a statement", return_tensors="pt")
        assert pair["token_type_ids"][0, -1] == 1 and tuned(**pair).logits.shape == (1, 2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--rows", '{"a": {"ngram_size": 0}}'], r"row a: ngram_size \(N\) must be 1 or more, got 0"),
        (["--rows", '{"a": {"separate_output_heads": true}}'], "row a: separate_output_heads must be False"),
        (["--rows", '{"a": {"output_scale": 2.0}}'], "row a may have ngram_size, target, .* got output_scale"),
        (["--rows", "{}"], "rows must name a model, such as"),
        (["--mask_share", "0"], r"mask_share must be in \(0, 1\], got 0"),
        (["--hidden_size", "33"], "hidden_size must be a multiple of num_heads"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_written(given, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("train_masked_lm", *SMALL, *given, "--output_dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_part_of_the_validation_text_may_be_enough_and_older_backbones_go(tmp_path):
    options = ["--max_steps", "1", "--output_dir", str(tmp_path / "out")]
    found = []
    for rows, extra in (('{"a": null}', []), ('{"b": null}', ["--max_validation_blocks", "1"])):
        run_recipe("train_masked_lm", *SMALL, *options, "--rows", rows, *extra, "--overwrite_output_dir", "true")
        found.append(json.loads((tmp_path / "out" / "results.json").read_text())["rows"][0]["validation"]["perplexity"])
    assert found[0] != found[1]
    assert not (tmp_path / "out" / "a-seed0").exists() and (tmp_path / "out" / "b-seed0" / "backbone").is_dir()
