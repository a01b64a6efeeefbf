"""The recipe that trains translation models: its tables, the models that it leaves, and what it refuses."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_targets import MultiTokenForSeq2SeqLM, encode_pairs, load_pairs, translate, translation_scores
from tests.recipes.running import run_recipe
from tests.training.test_model_card import run_code

SMALL = ["--max_train_pairs", "60", "--disable_tqdm", "true", "--num_beams", "2"]
ROWS = '{"plain": {}, "bow": {"bag_of_words": {}}, "wdr": {"ngram_size": 3}}'


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation") / "out"
    return folder, run_recipe("train_translation", *SMALL, "--rows", ROWS, "--output_dir", str(folder))


def test_the_comparison_leaves_scores_of_each_way(trained):
    folder, printed = trained
    scores = json.loads((folder / "scores.json").read_text())["scores"]
    assert list(scores) == ["plain", "bow", "wdr", "wdr, ensemble"]
    assert all(len(seeds) == 1 and seeds[0].keys() == {"bleu", "chrf"} for seeds in scores.values())
    assert "distinct bigrams" in printed
    assert f"| wdr, ensemble | {scores['wdr, ensemble'][0]['bleu']:.2f} |" in printed
    for name in ("plain", "wdr"):
        assert "AutoModelForSeq2SeqLM" in run_code(folder / f"{name}-seed0", folder)


def test_a_model_that_was_left_is_the_one_that_was_scored(trained):
    folder, _ = trained
    scores = json.loads((folder / "scores.json").read_text())["scores"]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "wdr-seed0")
    tokenizer = AutoTokenizer.from_pretrained(folder / "wdr-seed0")
    assert isinstance(model, MultiTokenForSeq2SeqLM)
    test = load_pairs("documentation:reversed", source_lang="en", target_lang="reversed")["test"]
    texts = translate(model, encode_pairs(test, tokenizer), tokenizer, num_beams=2, batch_tokens=512)
    assert translation_scores(texts, test["target"]).chrf == pytest.approx(scores["wdr"][0]["chrf"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--rows", '{"wdr": {"ngrams": 3}}'], "row wdr has no such field: ngrams"),
        (["--num_beams", "0"], "num_beams must be 1 or more, got 0"),
        (["--average_checkpoints", "0"], "average_checkpoints must be 1 or more"),
        (["--average_checkpoints", "3"], "save_total_limit must keep the 3 checkpoints"),
        (["--max_positions", "10"], "10"),
        (["--batch_tokens", "10"], "raise max_tokens"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_written(given, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("train_translation", *SMALL, *given, "--output_dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
