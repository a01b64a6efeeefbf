import json
import re

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from hf_targets import DynamicVocabForCausalLM, train_bpe_tokenizer
from tests.programs import ROOT
from tests.recipes.running import run_recipe

QUESTIONS = ROOT / "recipes" / "settings" / "answer_with_citations" / "questions.jsonl"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with phrases and one without, each with its tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = train_bpe_tokenizer([QUESTIONS.read_text()], vocab_size=400)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512}
    base = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=None, **sizes))
    for name, model in {"plain": base, "ours": DynamicVocabForCausalLM.from_base(base, phrase_start="encoder")}.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def test_every_row_has_the_columns_of_the_table_and_phrases_cite_what_their_documents_have(models, tmp_path):
    rows = {
        "plain": {"model": str(models / "plain"), "phrases": "none"},
        "n-grams": {"phrases": "ngrams"},
        "constituents": {"phrases": "constituents"},
        "provenance": {"phrases": "ngrams", "marking": "afterwards"},
    }
    given = ["--model", models / "ours", "--rows", json.dumps(rows), "--seeds", 0, "--output_dir", tmp_path]
    given += ["--demonstration", "true", "--num_documents", 2, "--document_words", 8]
    printed = run_recipe("tables/answer_with_citations", *given)
    for row in rows:
        folder = tmp_path / f"{row}-seed0"
        columns = json.loads((folder / "results.json").read_text())
        answers = json.loads((folder / "answers.json").read_text())
        assert {"lexical_recall", "lexical_precision_own", "str_em", "rouge_l", "seconds"} <= columns.keys()
        assert columns.get("right_markers", 100) == 100, row
        assert (columns["from_documents"] == 0) == (row == "plain"), row
        spans = [span["text"] for one in answers for span in one["spans"]]
        assert bool(spans) == (row != "plain")
        assert all(("[" in text) == (row != "provenance") for text in spans)
        page = (folder / "answers.html").read_text()
        assert page.count("<section") == 2 and str(models) not in page
        links = set(re.findall(r'href="#([^"]*-from-[^"]*)"', page))
        assert bool(links) == (row != "plain") and links <= set(re.findall(r'<mark id="([^"]*)"', page))
    assert re.findall(r"^\| ([\w-]+) \| \d", printed, re.M) == list(rows)
    stamp = (tmp_path / "plain-seed0" / "results.json").stat().st_mtime_ns
    run_recipe("tables/answer_with_citations", *given)  # what is there is not answered again
    assert (tmp_path / "plain-seed0" / "results.json").stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match="document_words was 8 and is 9"):
        run_recipe("tables/answer_with_citations", *given[:-1], 9)


def test_answers_are_kept_whatever_a_judge_does(models, tmp_path, monkeypatch):
    monkeypatch.setattr("lab.answer_scores.short_answers_found", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_recipe("answer_with_citations", "--model", models / "ours", "--output_dir", tmp_path)
    assert len(json.loads((tmp_path / "answers.json").read_text())) == 3


def test_one_model_prints_its_answers_with_their_sources_and_its_scores(models, tmp_path):
    printed = run_recipe("answer_with_citations", "--model", models / "ours", "--output_dir", tmp_path / "new")
    shown, scores = printed[: printed.rindex("\n{")], printed[printed.rindex("\n{") :]
    scores, where = scores.strip().rsplit("\n", 1)
    assert where.endswith(str(tmp_path / "new" / "answers.html"))
    assert json.loads(scores) == json.loads((tmp_path / "new" / "results.json").read_text())
    answers = json.loads((tmp_path / "new" / "answers.json").read_text())
    assert shown.count("Question: ") == len(answers) == 3
    assert shown.count(", characters ") == sum(len(one["spans"]) for one in answers) > 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"results.json", "answers.json", "answers.html"}
