import contextlib
import io
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import DynamicVocabForCausalLM, load_corpus, pack_blocks
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from hf_targets.training.tables import format_mean

ROOT = Path(__file__).parents[2]
SMALL = ["--max_train_words", "1500", "--logging_steps", "2", "--disable_tqdm", "true"]


def run(recipe: str, *arguments: str) -> str:
    """Run a recipe in this process at its smoke settings, and return what it printed."""
    settings = ROOT / "recipes" / "settings" / recipe / "smoke.yaml"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [f"recipes/{recipe}.py", str(settings), *arguments])
        runpy.run_path(str(ROOT / "recipes" / f"{recipe}.py"), run_name="__main__")
    return printed.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phrases") / "run"
    printed = run("train_dynamic_vocab", "--output_dir", str(folder), *SMALL, "--seeds", "0", "1")
    return folder / "ours-seed0", printed


def test_training_leaves_a_model_its_tokenizer_and_both_perplexities(trained):
    folder, printed = trained
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, DynamicVocabForCausalLM)
    assert len(AutoTokenizer.from_pretrained(folder)) == model.config.get_text_config().vocab_size
    rows = json.loads((folder.parent / "results.json").read_text())["rows"]
    ours = [row for row in rows if row["name"] == "ours"]
    for name in ("perplexity", "best_path_perplexity"):
        assert format_mean([row["test"][name] for row in ours]) in printed
    logged = [entry for entry in ours[0]["history"] if "loss" in entry]
    assert all({"loss_token", "loss_phrase", "loss_kl"} <= entry.keys() for entry in logged)
    assert logged


def test_every_row_is_trained_with_every_seed_for_as_many_steps_from_the_same_start(trained):
    folder, _ = trained
    rows = json.loads((folder.parent / "results.json").read_text())["rows"]
    assert [(row["name"], row["seed"]) for row in rows] == [("plain", 0), ("ours", 0), ("plain", 1), ("ours", 1)]
    assert len({row["history"][-1]["step"] for row in rows}) == 1
    assert not isinstance(AutoModelForCausalLM.from_pretrained(folder.parent / "plain-seed1"), DynamicVocabForCausalLM)


def test_no_figure_of_the_test_text_was_chosen_on_it(trained):
    folder, _ = trained
    for row in json.loads((folder.parent / "results.json").read_text())["rows"]:
        assert row["test"].keys() <= {"perplexity", "best_path_perplexity"}
        evaluated = [entry["eval_perplexity"] for entry in row["history"] if "eval_perplexity" in entry]
        assert row["validation"]["perplexity"] == pytest.approx(min(evaluated))  # the checkpoint that is measured
        assert not any(name.startswith("test") for entry in row["history"] for name in entry)


@pytest.mark.parametrize(
    ("row", "more"),
    [
        ({"phrases": "none"}, ["--encoder_learning_rate", "0.01"]),
        ({"phrases": "tokens", "negatives": ["in_batch", "pre_batch"]}, ["--lora_rank", "2"]),
        ({"phrases": "fmm", "fmm_min_count": 3, "negatives": ["in_batch", "corpus_retrieval"]}, []),
    ],
)
def test_other_phrases_and_negatives_train_from_the_model_left(trained, row, more, tmp_path):
    folder, _ = trained
    base = AutoModelForCausalLM.from_pretrained(folder).backbone
    base.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "base")
    more = [*more, "--model_name_or_path", str(tmp_path / "base"), "--output_dir", str(tmp_path / "out")]
    rows = ["--rows", json.dumps({"row": row})]
    printed = run("train_dynamic_vocab", *more, *SMALL, "--max_train_words", "700", *rows)
    assert ("best_path_perplexity" in printed) == (row["phrases"] != "none")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "row-seed0")
    assert isinstance(model, DynamicVocabForCausalLM) == (row["phrases"] != "none")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "row-seed0")
    test = pack_blocks(load_corpus("documentation:topics")["test"], tokenizer, 64)
    [measured] = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert perplexity_of_blocks(model, test).per_token == pytest.approx(measured["test"]["perplexity"], rel=1e-4)


def test_negatives_that_need_a_table_or_a_model_say_so(tmp_path):
    where = ["--output_dir", str(tmp_path / "out"), *SMALL]
    with pytest.raises(ValueError, match='which phrases="fmm" has'):
        run("train_dynamic_vocab", "--negatives", "corpus_retrieval", *where)
    with pytest.raises(ValueError, match="give negatives_model"):
        run("train_dynamic_vocab", "--negatives", "generation", *where)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ('{"a": null}', "a must have the phrase settings in which it differs"),
        ('{"a": {"block_size": 3}}', "a has the unknown phrase setting 'block_size'"),
        ('{"a": {"min_gap": "five"}}', "a must have min_gap like 5, got 'five'"),
        ('{"a": {"phrases": "few"}}', "phrases must be one of words, tokens, fmm, parsing, none, got 'few'"),
        ('{"a": {"min_gap": -1}}', "min_gap must be 0 or more"),
    ],
)
def test_a_row_of_settings_that_are_none_is_told_before_anything_is_trained(rows, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run("train_dynamic_vocab", "--rows", rows, "--output_dir", str(tmp_path / "out"), *SMALL)
    assert not (tmp_path / "out").exists()


def test_models_continue_prefixes_and_the_table_has_the_papers_columns(trained, tmp_path):
    folder, _ = trained
    models = [str(folder.parent / name) for name in ("ours-seed{seed}", "plain-seed0")]
    output = ["--output", str(tmp_path / "out.json"), "--seeds", "0", "1"]
    printed = run("evaluate_generation", "--models", *models, *output)
    content = json.loads((tmp_path / "out.json").read_text())
    assert [len(content["figures"][name]) for name in models] == [2, 1]  # greedily one model writes one text
    figures = content["figures"][models[0]][0]
    assert {
        "rep_2",
        "rep_3",
        "rep_4",
        "diversity",
        "latency",
        "generated_ppl",
        "nsl",
        "bytes_per_step",
    } <= figures.keys()
    for name in models:
        assert format_mean([columns["nsl"] for columns in content["figures"][name]]) in printed
    assert content.keys() == {"settings", "figures", "texts"}  # of every model and seed, with nothing chosen
    one, other = content["texts"][models[0]]
    assert len(one) == len(other) == 4
    assert one != other
    assert 0 < figures["nsl"] <= 24
    run("evaluate_generation", "--models", models[1], *output, "--split", "validation")
    other_prefixes = json.loads((tmp_path / "out.json").read_text())["texts"]
    assert other_prefixes[models[1]] != content["texts"][models[1]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "1", "1"], "seeds must differ"),
        (["--models", "a", "a"], "models must name at least one model, and each once"),
        (["--seed", "1"], "give seeds in its place"),
    ],
)
def test_seeds_and_models_are_named_once_each(arguments, told):
    with pytest.raises(ValueError, match=told):
        run("evaluate_generation", *arguments)


def test_a_generated_text_is_marked_in_the_terminal_and_on_a_page(trained, tmp_path):
    folder, _ = trained
    terms = tmp_path / "terms.txt"
    terms.write_text("the import statement\nof the module\n\n", encoding="utf-8")
    more = ["--phrases", str(terms), "--html", str(tmp_path / "page.html"), "--new_tokens", "12"]
    printed = run("generate_with_phrases", "--model", str(folder), *more)
    assert printed.startswith("The import statement")
    used = int(re.search(r"(\d+) used", printed)[1])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<mark") == used


def test_the_mining_benchmark_prints_its_rates():
    printed = io.StringIO()
    small = ["--dataset", "documentation:topics", "--num_blocks", "4", "--num_phrases", "500"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["phrase_mining.py", *small])
        runpy.run_path(str(ROOT / "recipes" / "benchmarks" / "phrase_mining.py"), run_name="__main__")
    assert "forward maximum matching |" in printed.getvalue()
    made = int(re.search(r"A vocabulary of (\d+) phrases", printed.getvalue())[1])
    assert 300 < made <= 500


def test_the_benchmark_prints_its_four_tables():
    printed = io.StringIO()
    small = ["--num_layers", "1", "--hidden_size", "32", "--vocab_size", "400", "--num_windows", "8", "--rounds", "1"]
    small += ["--table_sizes", "0", "64", "--search_sizes", "512", "--num_steps", "2"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["phrases.py", *small])
        runpy.run_path(str(ROOT / "recipes" / "benchmarks" / "phrases.py"), run_name="__main__")
    torch.set_grad_enabled(True)
    tables = printed.getvalue()
    for heading in ("phrases a second", "ms a step", "mean steps", "recall"):
        assert heading in tables
