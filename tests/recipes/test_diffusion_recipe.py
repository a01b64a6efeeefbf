import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_targets import MdlmConfig, MdlmForMaskedDiffusion, load_corpus, train_bpe_tokenizer
from hf_targets.masked_diffusion.perplexity_bound import perplexity_bound
from hf_targets.masked_diffusion.rows import sentence_rows, wrapped_blocks
from tests.lab.test_card import run_code
from tests.recipes.running import run_recipe, small_text
from tests.tiny_backbones import make_backbone

SMALL = ["--max_train_words", "500", "--max_length", "16", "--vocab_size", "300", "--max_validation_rows", "16"]
SMALL += ["--dataset", small_text(), "--disable_tqdm", "true"]
LINES = ["the cat sat on the mat\n", "a dog ran after the cat\n", "the mat is red\n"] * 30


def run(*arguments: object, name: str = "train_mdlm_curve") -> str:
    return run_recipe(name, *SMALL, *arguments)


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def loaded(folder: Path) -> tuple:
    return AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def bound(model, rows) -> float:
    return pytest.approx(perplexity_bound(model, rows, num_draws=8, seed=0).perplexity, rel=1e-5)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diffusion") / "out"
    return folder, run("--output_dir", folder, name="tables/train_mdlm_curve")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(LINES))
    return file


@pytest.mark.parametrize("name", ["mdlm", "curve", "hidden-2-curves"])
def test_the_saved_models_of_a_table_are_the_measured_ones_and_their_cards_run(compared, name):
    folder = compared[0] / f"{name}-seed0"
    measured, (model, tokenizer) = results(folder), loaded(folder)
    curve = model.config.curve
    wanted = {"mdlm": None, "curve": ("input", 1), "hidden-2-curves": ("hidden", 2)}
    assert (curve and (curve.place, curve.num_curves)) == wanted[name]
    assert tokenizer.mask_token_id == model.config.mask_token_id
    rows = sentence_rows(load_corpus(small_text())["test"], tokenizer, 16)
    assert measured["perplexity"] == bound(model, rows)
    assert f"| {name} | {measured['parameters']}" in compared[1] and f"{measured['perplexity']:.2f}" in compared[1]
    card = ModelCard.load(folder / "README.md")
    assert {one.metric_name: one.metric_value for one in card.data.eval_results}["perplexity"] == measured["perplexity"]
    run_code(folder, folder.parent)


def test_blocks_of_running_text_are_trained_on_and_measured(text, tmp_path):
    more = ["--packed", "true", "--max_length", "8", "--max_train_words", "200", "--curve", '{"degree": 1}']
    run("--output_dir", tmp_path / "out", "--dataset", text, *more)
    model, tokenizer = loaded(tmp_path / "out")
    assert results(tmp_path / "out")["perplexity"] == bound(
        model, wrapped_blocks(load_corpus(str(text))["test"], tokenizer, 8)
    )


@pytest.mark.parametrize("protocol", ["published", "conditional"])
def test_a_length_protocol_is_that_of_training_and_of_the_figures(protocol, text, tmp_path):
    run("--output_dir", tmp_path / "out", "--dataset", text, "--length_protocol", protocol, "--max_steps", "2")
    model, tokenizer = loaded(tmp_path / "out")
    rows = sentence_rows(load_corpus(str(text))["test"], tokenizer, 16, protocol)
    assert results(tmp_path / "out")["perplexity"] == bound(model, rows)


def test_a_saved_model_is_tuned_further_with_another_curve(compared, text, tmp_path):
    base, still = compared[0] / "curve-seed0", ["--learning_rate", "0", "--max_steps", "1"]
    more = ["--model_name_or_path", base, "--dataset", text, "--curve", '{"degree": 1}']
    run("--output_dir", tmp_path / "out", *more, *still)
    (model, _), (start, _) = loaded(tmp_path / "out"), loaded(base)
    assert model.config.curve.degree == 1
    assert all(torch.equal(value, start.state_dict()[key]) for key, value in model.state_dict().items())


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
        *("--curve", "{}", "--output_dir", tmp_path / "out"),
    )
    model, _ = loaded(tmp_path / "out")
    assert (model.config.max_position_embeddings, model.config.dropout) == (24, 0.2)
    assert model.config.mask_token_id == tokenizer.mask_token_id != model.config.vocab_size - 1
    assert all(torch.equal(value, original.state_dict()[key]) for key, value in model.state_dict().items())
    rows = sentence_rows(load_corpus(str(text))["test"], tokenizer, 16)
    assert results(tmp_path / "out")["perplexity"] == bound(model, rows)


def test_a_causal_model_becomes_a_diffusion_model_with_a_row_for_its_new_mask(tmp_path):
    tokenizer = train_bpe_tokenizer(LINES, 270)
    base = make_backbone("llama", vocab_size=len(tokenizer))
    for part in (base, tokenizer):
        part.save_pretrained(tmp_path / "base")
    given = ["--from_causal", tmp_path / "base", "--packed", "true", "--max_steps", "1", "--learning_rate", "1e-9"]
    run(*given, "--config", '{"annealing_steps": 4}', "--output_dir", tmp_path / "out")
    model, tokenizer = loaded(tmp_path / "out")
    assert model.config.vocab_size == len(tokenizer) == tokenizer.mask_token_id + 1
    assert model.config.annealing_steps == 4 and model.reading.step == 1
    kept = model.get_input_embeddings().weight[: tokenizer.mask_token_id]
    torch.testing.assert_close(kept, base.get_input_embeddings().weight)
