import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_targets import MdlmConfig, MdlmForMaskedDiffusion, load_corpus, train_bpe_tokenizer
from hf_targets.masked_diffusion.perplexity_bound import perplexity_bound
from hf_targets.masked_diffusion.rows import sentence_rows, wrapped_blocks
from tests.recipes.running import run_recipe, small_text
from tests.training.test_model_card import run_code

SMALL = ["--max_train_words", "500", "--max_length", "16", "--vocab_size", "300", "--max_validation_rows", "16"]
SMALL += ["--dataset", small_text(), "--disable_tqdm", "true"]
LINES = ["the cat sat on the mat\n", "a dog ran after the cat\n", "the mat is red\n"] * 30


def run(*arguments: str) -> str:
    return run_recipe("train_mdlm_curve", *SMALL, *arguments)


def results(folder: Path) -> list[dict]:
    return json.loads((folder / "results.json").read_text())["rows"]


def bound(model, rows) -> float:
    return perplexity_bound(model, rows, num_draws=8, seed=0).perplexity


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diffusion") / "out"
    return folder, run("--output_dir", str(folder))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(LINES))
    return file


def test_the_comparison_leaves_a_table_a_figure_and_its_settings(trained):
    folder, printed = trained
    assert [row["name"] for row in results(folder)] == ["mdlm", "curve", "hidden-2-curves"]
    for row in results(folder):
        perplexity, margin = row["test"]["perplexity"], row["test"]["nelbo_margin"]
        low, high = perplexity * math.exp(-margin), perplexity * math.exp(margin)
        bound_shown = f"{perplexity:.2f} ({low:.2f} to {high:.2f}, 95% over draws)"
        assert f"| {row['name']} | {row['num_parameters']:,} | {bound_shown} |" in printed
        assert f"Sample of {row['name']}: " in printed
        assert any("eval_perplexity" in entry for entry in row["history"])
    plain, curve, curves = (row["num_parameters"] for row in results(folder))
    assert plain == curve < curves
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "results.json").read_text())["settings"]["max_length"] == 16


@pytest.mark.parametrize("name", ["mdlm", "curve", "hidden-2-curves"])
def test_the_saved_models_are_the_measured_ones(trained, name):
    folder, _ = trained
    model = AutoModelForMaskedLM.from_pretrained(folder / f"{name}-seed0")
    assert isinstance(model, MdlmForMaskedDiffusion)
    curve = model.config.curve
    assert (curve and (curve.place, curve.num_curves)) == {
        "mdlm": None,
        "curve": ("input", 1),
        "hidden-2-curves": ("hidden", 2),
    }[name]
    tokenizer = AutoTokenizer.from_pretrained(folder / f"{name}-seed0")
    assert tokenizer.mask_token_id == model.config.mask_token_id
    rows = sentence_rows(load_corpus(small_text())["test"], tokenizer, 16)
    row = next(row for row in results(folder) if row["name"] == name)
    assert row["test"]["perplexity"] == pytest.approx(bound(model, rows), rel=1e-5)


def test_the_card_of_a_model_calls_its_perplexity_a_bound_and_its_code_runs(trained):
    folder, _ = trained
    card = ModelCard.load(folder / "curve-seed0" / "README.md")
    [result] = card.data.eval_results
    assert result.metric_name == "upper bound of the perplexity"
    assert result.metric_value == next(row for row in results(folder) if row["name"] == "curve")["test"]["perplexity"]
    assert "AutoModelForMaskedLM" in run_code(folder / "curve-seed0", folder)


def test_a_run_broken_off_before_its_last_row_is_resumed_and_has_the_same_figures(trained):
    folder, _ = trained
    before = results(folder)
    (checkpoint,) = (folder / "mdlm-seed0").glob("checkpoint-*/optimizer.pt")
    written = checkpoint.stat().st_mtime_ns
    shutil.rmtree(folder / "hidden-2-curves-seed0")
    with pytest.raises(ValueError, match="is not empty; name another, or pass --overwrite_output_dir"):
        run("--output_dir", str(folder))
    run("--output_dir", str(folder), "--resume_from_checkpoint", "true")
    for one, other in zip(before, results(folder), strict=True):
        assert one["name"] == other["name"]
        assert one["test"] == pytest.approx(other["test"], rel=1e-5)
    assert checkpoint.stat().st_mtime_ns == written  # what was trained is not trained again
    assert list((folder / "hidden-2-curves-seed0").glob("checkpoint-*"))


def test_blocks_of_running_text_are_trained_on_and_measured(text, tmp_path):
    more = ["--packed", "true", "--max_length", "8", "--max_train_words", "200", "--rows", '{"curve": {"degree": 1}}']
    run("--output_dir", str(tmp_path / "out"), "--dataset", str(text), *more)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "curve-seed0")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / "curve-seed0")
    (row,) = results(tmp_path / "out")
    rows = wrapped_blocks(load_corpus(str(text))["test"], tokenizer, 8)
    assert row["test"]["perplexity"] == pytest.approx(bound(model, rows), rel=1e-5)


@pytest.mark.parametrize("protocol", ["published", "conditional"])
def test_a_length_protocol_is_that_of_training_and_of_the_figures(protocol, text, tmp_path):
    more = ["--length_protocol", protocol, "--max_steps", "2", "--rows", '{"mdlm": null}']
    run("--output_dir", str(tmp_path / "out"), "--dataset", str(text), *more)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / "mdlm-seed0")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "mdlm-seed0")
    rows = sentence_rows(load_corpus(str(text))["test"], tokenizer, 16, protocol)
    assert results(tmp_path / "out")[0]["test"]["perplexity"] == pytest.approx(bound(model, rows), rel=1e-5)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["settings"]["length_protocol"] == protocol


def test_a_saved_model_is_tuned_further_with_a_curve_or_without(trained, text, tmp_path):
    base, still = trained[0] / "curve-seed0", ["--learning_rate", "0", "--max_steps", "1"]
    rows = '{"mdlm": null, "curve": {"degree": 1}}'
    more = ["--model_name_or_path", str(base), "--dataset", str(text), "--rows", rows]
    run("--output_dir", str(tmp_path / "out"), *more, *still)
    start = AutoModelForMaskedLM.from_pretrained(base).state_dict()
    for name, degree in (("mdlm", None), ("curve", 1)):
        model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / f"{name}-seed0")
        assert (model.config.curve and model.config.curve.degree) == degree
        assert all(torch.equal(value, start[key]) for key, value in model.state_dict().items())


def test_a_published_model_is_tuned_with_the_mask_of_its_tokenizer(text, tmp_path):
    tokenizer = train_bpe_tokenizer(LINES, 270)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "cond_dim": 8}
    torch.manual_seed(0)
    original = MdlmForMaskedDiffusion(MdlmConfig(vocab_size=len(tokenizer) + 5, **sizes))
    (tmp_path / "published").mkdir()
    save_file(original.to_published(), tmp_path / "published" / "model.safetensors")
    config = {"model_type": "mdlm", "architectures": ["MDLM"], "hidden_dim": 16, "n_blocks": 1, "n_heads": 2}
    config |= {"cond_dim": 8, "model_length": 24, "vocab_size": len(tokenizer) + 5, "time_conditioning": False}
    (tmp_path / "published" / "config.json").write_text(json.dumps({**config, "dropout": 0.2}))
    run(
        *("--model_name_or_path", str(tmp_path / "published"), "--original_layout", "true", "--learning_rate", "0"),
        *("--tokenizer", str(tmp_path / "tokenizer"), "--dataset", str(text), "--max_steps", "1"),
        *("--rows", '{"curve": {}}', "--output_dir", str(tmp_path / "out")),
    )
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / "curve-seed0")
    assert (model.config.max_position_embeddings, model.config.dropout) == (24, 0.2)
    assert model.config.mask_token_id == tokenizer.mask_token_id != model.config.vocab_size - 1
    assert all(torch.equal(value, original.state_dict()[key]) for key, value in model.state_dict().items())
    rows = sentence_rows(load_corpus(str(text))["test"], tokenizer, 16)
    assert results(tmp_path / "out")[0]["test"]["perplexity"] == pytest.approx(bound(model, rows), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--rows", '{"a": {"degrees": 2}}'],
            "a has unknown fields of a curve: degrees; known: num_control_points_ratio",
        ),
        (["--rows", '{"a": {"num_control_points_ratio": 0.2}}'], "or choose rank_deficient="),
        (["--rows", '{"a": {"degree_ratio": 0.7}}', "--max_length", "64"], "64 tokens cannot be told apart on a curve"),
        (["--dataset", "no/such/data"], "neither a local file or folder"),
        (["--ema_decay", "1"], "ema_decay must be in [0, 1), got 1"),
        (["--sampler", "magic"], "sampler must be one of ancestral, cached"),
        (["--sampler", "entropy_bound"], "needs entropy_bound, in nats"),
        (["--sampler_options", '{"steps": 3}'], "sampler_options of cached are num_steps, got steps"),
        (["--no_such_setting", "3"], "unknown setting no_such_setting"),
    ],
)
def test_wrong_settings_are_told_and_nothing_is_written(arguments, told, tmp_path):
    with pytest.raises(ValueError, match=re.escape(told)):
        run("--output_dir", str(tmp_path / "out"), *arguments)
    assert not (tmp_path / "out").exists()
