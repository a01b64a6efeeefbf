import json
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import MultiTokenForCausalLM, load_corpus, pack_blocks, repair_reformer
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from tests.lab.test_card import run_code
from tests.recipes.running import run_recipe, small_text

SMALL = ["--max_train_words", "600", "--num_train_epochs", "2", "--disable_tqdm", "true"]
TEXT = ["--dataset", small_text()]
ONE_SEED, TWO_SEEDS = ["--seeds", "0"], ["--seeds", "0", "1"]


def run(recipe: str, *arguments: str) -> str:
    return run_recipe(recipe, *SMALL, *(TEXT if recipe != "train_draft_heads" else []), *arguments)


def card_of(folder: Path, row: dict):
    return ModelCard.load(folder / f"{row['name']}-seed{row['seed']}" / "README.md").data


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune") / "out"
    return folder, run("finetune_gptneo_wdr", "--output_dir", str(folder))


def test_the_small_decoder_writes_the_rows_of_table_1(tmp_path):
    printed = run("train_small_lm", "--output_dir", str(tmp_path / "out"), "--block_size", "16")
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["plain", "simple-3", "wdr-3"]
    for row in rows:
        assert f"| {row['name']} | {row['test']['perplexity_0']:.1f} |" in printed
        [result] = [one for one in card_of(tmp_path / "out", row).eval_results if one.metric_name == "perplexity"]
        assert result.metric_value == row["test"]["perplexity"]
    assert printed.count("| model | perplexity |") == 1
    run_code(tmp_path / "out" / "wdr-3-seed0", tmp_path / "out")
    assert "import hf_targets" not in run_code(tmp_path / "out" / "plain-seed0", tmp_path / "out")


def test_the_small_reformer_is_trained_like_the_small_decoder_and_its_card_says_how_it_hashes(tmp_path):
    arguments = ("--architecture", "reformer", "--block_size", "16", "--chunk_length", "8", "--num_hashes", "2")
    printed = run("train_small_lm", *arguments, "--output_dir", str(tmp_path / "out"))
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["plain", "simple-3", "wdr-3"]
    assert all(f"| {row['name']} | {row['test']['perplexity_0']:.1f} |" in printed for row in rows)
    for row in rows:
        card = (tmp_path / "out" / f"{row['name']}-seed0" / "README.md").read_text(encoding="utf-8")
        assert "call `hf_targets.repair_reformer(model)`" in card
    blocks = pack_blocks(
        load_corpus(small_text())["test"], AutoTokenizer.from_pretrained(tmp_path / "out/wdr-3-seed0"), 16
    )
    for name in ("plain", "wdr-3"):  # read in this process as in the training
        model = repair_reformer(AutoModelForCausalLM.from_pretrained(tmp_path / "out" / f"{name}-seed0")).eval()
        [row] = [row for row in rows if row["name"] == name]
        assert perplexity_of_blocks(model, blocks).per_token == pytest.approx(row["test"]["perplexity"], rel=1e-3)


@pytest.mark.parametrize("leaky", [False, True])
def test_the_small_tensorized_transformer_is_marked_if_it_is_leaky(leaky, tmp_path):
    arguments = ["--architecture", "tensorized", "--block_size", "16", *(["--paper_leaky", "true"] if leaky else [])]
    printed = run("train_small_lm", *arguments, "--output_dir", str(tmp_path / "out"))
    mark = "-leaky" if leaky else ""
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row["name"] for row in rows] == [f"plain{mark}", f"simple-3{mark}", f"wdr-3{mark}"]
    assert ("**Leaky**" in printed) == leaky
    for row in rows:
        card = (tmp_path / "out" / f"{row['name']}-seed0" / "README.md").read_text(encoding="utf-8")
        assert ("**Leaky**" in card) == leaky


def test_draft_heads_are_trained_on_a_frozen_model_measured_and_benchmarked(finetuned, tmp_path):
    base, _ = finetuned  # a model with heads: new ones are put on its backbone
    words = ["--block_size", "16", "--prompt_tokens", "4", "--max_new_tokens", "8", "--branches", "2"]
    printed = run(
        "train_draft_heads",
        *("--model_name_or_path", str(base), "--output_dir", str(tmp_path / "out"), "--kinds", "simple", "wdr"),
        *("--num_generated", "8", "--num_prompts", "2", *words, *TWO_SEEDS),
    )
    assert "run 1/4: simple-seed0, 8 blocks of 16 tokens" in printed
    figures = r" \| ".join([r"\d+ ± \d+", *[r"\d+\.\d\d ± \d+\.\d\d"] * 3])
    assert re.search(rf"\| wdr, 2 branches \| {figures} \| 100% \|", printed)
    other = MultiTokenForCausalLM.from_pretrained(tmp_path / "out" / "wdr-seed1")
    model = MultiTokenForCausalLM.from_pretrained(tmp_path / "out" / "wdr-seed0")
    code = run_code(tmp_path / "out" / "wdr-seed0", tmp_path / "out")
    assert "draft_tokens" in code
    [result] = ModelCard.load(tmp_path / "out" / "wdr-seed0" / "README.md").data.eval_results
    assert result.metric_name == "tokens per forward pass, one row" and result.metric_value >= 1
    assert not torch.equal(next(model.heads.parameters()), next(other.heads.parameters()))
    assert (model.config.head, model.config.target, model.config.ngram_size) == ("conditional", "difference", 4)
    original = AutoModelForCausalLM.from_pretrained(base).backbone.state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in model.backbone.state_dict().items())
    with pytest.raises(ValueError, match="must be one of wdr, wdr-plain, simple, medusa, mlp, conditional, got"):
        run("train_draft_heads", "--kinds", "tree", "--output_dir", str(tmp_path / "other"))
    for long in (["--block_size", "5000"], ["--prompt_tokens", "4000", "--max_new_tokens", "1000"]):
        with pytest.raises(ValueError, match=r"must be at most the model's \d+ positions, got"):
            run(
                "train_draft_heads",
                "--model_name_or_path",
                str(base),
                *words,
                *long,
                "--output_dir",
                str(tmp_path / "o"),
            )
    assert not (tmp_path / "o").exists()

    arguments = ["--heads", str(tmp_path / "out"), "--num_prompts", "2", "--batch_sizes", "1", "2", "--rounds", "1"]
    done = run_recipe("benchmarks/decode", *arguments, *words)
    rows = [line for line in done.splitlines() if line.startswith("| ")]
    names = [line.split("|")[1].strip() for line in rows if "tokens / s" not in line and "---" not in line]
    drafts = [
        "wdr, chain",
        "wdr, tree",
        "wdr, auto",
        "wdr, chain and lookup",
        "wdr, ensemble, no drafts",
        "simple, chain",
        "simple, tree",
        "simple, auto",
    ]
    assert names == ["plain", "prompt lookup", *drafts, "plain", *drafts]
    assert all("| 100% |" in line for line in rows if "chain" in line or "tree" in line)
