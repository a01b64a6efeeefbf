import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import MultiTokenForCausalLM, load_corpus, pack_blocks, repair_reformer
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from tests.hub_server import HubServer, run_against
from tests.programs import ROOT
from tests.recipes.running import run_recipe, small_text
from tests.tiny_models import make_backbone
from tests.training.test_model_card import run_code

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
    return folder, run("finetune_gptneo_wdr", *TWO_SEEDS, "--language", "en", "--output_dir", str(folder))


def test_the_comparison_leaves_a_table_figures_a_card_and_a_model(finetuned):
    folder, printed = finetuned
    results = json.loads((folder / "results.json").read_text())
    rows = {(row["name"], row["seed"]): row for row in results["rows"]}
    assert list(rows) == [(name, seed) for seed in (0, 1) for name in ("plain", "simple", "wdr")]
    assert rows["plain", 0]["ensemble_weight"] is None
    for name in ("simple", "wdr"):
        assert all(rows[name, seed]["ensemble_weight"] in (0.1, 0.2, 0.3, 0.4) for seed in (0, 1))
        one, other = (rows[name, seed]["test"]["perplexity_ensemble"] for seed in (0, 1))
        shown = f"{(one + other) / 2:.2f} ± {abs(one - other) / 2:.2f}"
        assert shown in printed
        assert shown in (folder / "README.md").read_text()
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert "Sample: 'The statement" in printed


def test_the_saved_model_is_the_measured_one(finetuned):
    folder, _ = finetuned
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = json.loads((folder / "results.json").read_text())["rows"]
    best = min((row for row in rows if row["name"] == "wdr"), key=lambda row: row["validation"]["perplexity"])
    assert isinstance(model, MultiTokenForCausalLM)
    assert model.config.ensemble_weight == best["ensemble_weight"]
    corpus = load_corpus(small_text(), max_train_words=600)
    measured = perplexity_of_blocks(model, pack_blocks(corpus["test"], tokenizer, 64)).per_token
    assert measured == pytest.approx(best["test"]["perplexity_ensemble"], rel=1e-4)
    text = tokenizer("The import statement", return_tensors="pt")
    assert model.generate(**text, max_new_tokens=4).shape[1] == text["input_ids"].shape[1] + 4


def test_the_card_of_the_saved_model_can_be_loaded_and_its_code_runs(finetuned):
    folder, printed = finetuned
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.language) == ("hf-targets", "en")
    assert [one.metric_name for one in card.data.eval_results] == ["perplexity", "perplexity with ensemble"]
    assert card.data.get("seeds") == [0, 1]
    for line in printed.splitlines():
        assert not line.startswith("|") or line in str(card)
    assert "loss" not in printed.split("| model |")[1]  # lines of the training come before the table, which is one
    assert printed.count("| model |") == 1
    run_code(folder, folder.parent)


def test_an_older_output_is_kept_until_it_may_go(finetuned):
    folder, _ = finetuned
    before = (folder / "results.json").read_text()
    with pytest.raises(ValueError, match="is not empty; name another, or pass --overwrite_output_dir"):
        run("finetune_gptneo_wdr", *TWO_SEEDS, "--output_dir", str(folder))
    with pytest.raises(ValueError, match="neither a local file or folder"):
        run(
            "finetune_gptneo_wdr", "--output_dir", str(folder), "--overwrite_output_dir", "true", "--dataset", "no/such"
        )
    assert list((folder / "wdr-seed1").glob("checkpoint-*"))
    assert (folder / "results.json").read_text() == before


def test_a_finished_run_that_is_resumed_has_the_same_figures(finetuned):
    folder, _ = finetuned
    before = json.loads((folder / "results.json").read_text())["rows"]
    resume = ["--output_dir", str(folder), "--resume_from_checkpoint", "true"]
    with pytest.raises(ValueError, match=r"seeds was \[0, 1\] and is now \[0, 1, 2\]"):
        run("finetune_gptneo_wdr", *resume)
    run("finetune_gptneo_wdr", *TWO_SEEDS, *resume)
    after = json.loads((folder / "results.json").read_text())["rows"]
    for one, other in zip(before, after, strict=True):
        assert one["test"] == pytest.approx(other["test"], rel=1e-6)


def test_two_processes_started_by_torchrun_train_one_model(tmp_path):
    given = ["recipes/settings/finetune_gptneo_wdr/smoke.yaml", *SMALL, *TEXT, *ONE_SEED, "--rows", "wdr"]
    given += ["--use_cpu", "true", "--max_steps", "2", "--output_dir"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "recipes/finetune_gptneo_wdr.py"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, *given, tmp_path / "two", "--per_device_train_batch_size", "4"]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run 1/1: wdr, seed 0\n") == 1
    run("finetune_gptneo_wdr", *given[3:], str(tmp_path / "one"), "--per_device_train_batch_size", "8")
    one, two = (
        json.loads((tmp_path / name / "results.json").read_text())["rows"][0]["test"] for name in ("one", "two")
    )
    assert one == pytest.approx(two, rel=0.02)  # Transformers draws another order of the rows


def test_lora_on_a_given_base_model_and_text(tmp_path):
    make_backbone("llama", vocab_size=300).save_pretrained(tmp_path / "base")
    from hf_targets import train_bpe_tokenizer

    words = ["one two three four five six seven\n"] * 200
    train_bpe_tokenizer(words, 262).save_pretrained(tmp_path / "base")
    (tmp_path / "text.txt").write_text("".join(words))
    run(
        "finetune_gptneo_wdr",
        *("--model_name_or_path", str(tmp_path / "base"), "--dataset", str(tmp_path / "text.txt")),
        *(*ONE_SEED, "--lora_rank", "2", "--rows", "wdr", "--output_dir", str(tmp_path / "out"), "--block_size", "16"),
        *("--eval_strategy", "no", "--save_strategy", "no"),
        *("--head_warmup_steps", "2", "--head_learning_rate", "0.01", "--prompt", "one"),
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.get_text_config().model_type == "llama"
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(model.backbone.state_dict()[name], base.state_dict()[name])
    assert torch.equal(model.get_output_embeddings().weight, base.get_output_embeddings().weight)


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


def test_a_trained_model_is_uploaded_with_its_card_and_comes_back(tmp_path):
    settings = "recipes/settings/finetune_gptneo_wdr/smoke.yaml"
    with HubServer() as hub:
        run_against(
            hub,
            tmp_path / "pusher",
            *("recipes/finetune_gptneo_wdr.py", settings, *SMALL, *TEXT, "--output_dir", str(tmp_path / "run")),
            *(*ONE_SEED, "--rows", "wdr", "--push_to_hub", "true", "--hub_model_id", "me/wdr"),
        )
        files = hub.files("me/wdr")
        assert {"README.md", "config.json", "model.safetensors", "learning_curves.png", "tokenizer.json"} <= set(files)
        assert not [name for name in files if name.startswith("wdr-seed0/")]
        assert b"model-index" in files["README.md"]
        code = (
            "import hf_targets; from transformers import AutoModelForCausalLM as A, AutoTokenizer as T;"
            "m = A.from_pretrained('me/wdr'); t = T.from_pretrained('me/wdr');"
            "print(type(m).__name__, m(**t('The', return_tensors='pt')).logits.sum().item())"
        )
        printed = run_against(hub, tmp_path / "puller", "-c", code).split()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    ids = AutoTokenizer.from_pretrained(tmp_path / "run")("The", return_tensors="pt")
    assert printed[0] == "MultiTokenForCausalLM"
    assert float(printed[1]) == pytest.approx(model(**ids).logits.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rows", "plain", "magic"], "rows must be of plain, simple and wdr, got magic"),
        (["--wdr_ngram_size", "1"], "2 or more, got 1"),
        (["--ensemble_weights", "0", "1.5"], "must be in [0, 1], got 1.5"),
        (["--dataset", "no/such/data"], "neither a local file or folder"),
        (["--block_size", "100000"], "a text must fill one block"),
        (["--resume_from_checkpoint", "some/path"], "resume_from_checkpoint must be true or false"),
        (["--seeds", "1", "0", "1"], "seeds must differ, as the same seed gives the same run again, got 1 twice"),
        (["--seeds", "-1"], "seeds must be in [0, 2^32 - 1], which all generators take, got -1"),
        (["--seed", "3"], "seed is for a single training; give seeds in its place"),
        (["--head_warmup_steps", "0"], "head_warmup_steps must be at least 1, got 0"),
        (["--num_train_epochs", "0"], "a model is trained for at least one update"),
        (["--no_such_setting", "3"], "unknown setting no_such_setting"),
    ],
)
def test_wrong_settings_are_told_and_nothing_is_written(arguments, told, tmp_path):
    with pytest.raises(ValueError, match=re.escape(told)):
        run("finetune_gptneo_wdr", "--output_dir", str(tmp_path / "out"), *arguments)
    assert not (tmp_path / "out").exists()
