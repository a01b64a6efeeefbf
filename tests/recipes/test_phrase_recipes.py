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

from hf_targets import DynamicVocabForCausalLM

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
    folder = tmp_path_factory.mktemp("phrases") / "ours"
    return folder, run("train_dynamic_vocab", "--output_dir", str(folder), *SMALL)


def test_training_leaves_a_model_its_tokenizer_and_both_perplexities(trained):
    folder, printed = trained
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, DynamicVocabForCausalLM)
    assert len(AutoTokenizer.from_pretrained(folder)) == model.config.get_text_config().vocab_size
    results = json.loads((folder / "results.json").read_text())
    for name in ("perplexity", "best_path_perplexity"):
        assert f"test {name}: {results['test'][f'test_{name}']:.2f}" in printed
    logged = [entry for entry in results["history"] if "loss" in entry]
    assert all({"loss_token", "loss_phrase", "loss_kl"} <= entry.keys() for entry in logged)
    assert logged


@pytest.mark.parametrize(
    "changes",
    [
        ["--phrases", "none"],
        ["--phrases", "tokens", "--negatives", "in_batch", "pre_batch", "--lora_rank", "2"],
        ["--phrases", "fmm", "--fmm_min_count", "3", "--negatives", "in_batch", "corpus_retrieval"],
    ],
)
def test_other_phrases_and_negatives_train_from_the_model_left(trained, changes, tmp_path):
    folder, _ = trained
    base = AutoModelForCausalLM.from_pretrained(folder).backbone
    base.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "base")
    more = ["--model_name_or_path", str(tmp_path / "base"), "--output_dir", str(tmp_path / "out")]
    printed = run("train_dynamic_vocab", *more, *SMALL, "--max_train_words", "700", *changes)
    assert ("best_path_perplexity" in printed) == (changes[1] != "none")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert isinstance(model, DynamicVocabForCausalLM) == (changes[1] != "none")


def test_negatives_that_need_a_table_or_a_model_say_so(tmp_path):
    where = ["--output_dir", str(tmp_path / "out"), *SMALL]
    with pytest.raises(ValueError, match='which phrases="fmm" has'):
        run("train_dynamic_vocab", "--negatives", "corpus_retrieval", *where)
    with pytest.raises(ValueError, match="give negatives_model"):
        run("train_dynamic_vocab", "--negatives", "generation", *where)


def test_models_continue_prefixes_and_the_table_has_the_papers_columns(trained, tmp_path):
    folder, _ = trained
    printed = run("evaluate_generation", "--models", str(folder), "--output", str(tmp_path / "out.json"))
    content = json.loads((tmp_path / "out.json").read_text())
    figures = content["figures"]["ours"]
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
    assert f"{figures['nsl']:.2f}" in printed
    assert len(content["texts"]["ours"]) == 4
    assert 0 < figures["nsl"] <= 24


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
