import json

import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import MultiTokenForCausalLM, load_corpus, pack_blocks, train_bpe_tokenizer
from hf_targets.data.corpora import first_words
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from tests.lab.test_card import run_code
from tests.programs import ROOT
from tests.recipes.running import run_recipe, small_text
from tests.tiny_models import make_backbone
from tests.trainer_runs import run_processes

SMALL = ["--max_train_words", "600", "--num_train_epochs", "1", "--disable_tqdm", "true", "--dataset", small_text()]
SMALL += ["--vocab_size", "400"]


def run(*arguments: object) -> str:
    return run_recipe("finetune_gptneo_wdr", *SMALL, *arguments)


def results(folder):
    return json.loads((folder / "results.json").read_text())


def first_test_words(count):
    return Dataset.from_dict({"text": first_words(load_corpus(small_text())["test"]["text"], count)})


def test_the_table_has_the_results_of_all_rows(finetuned):
    folder, printed = finetuned
    for name in ("simple", "wdr"):
        assert f"{results(folder / f'{name}-seed0')['perplexity_ensemble']:.2f}" in printed
    assert "ensemble_weight" not in results(folder / "plain-seed0")
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_saved_model_is_the_measured_one_and_its_card_has_its_figures_and_code_that_runs(finetuned):
    folder = finetuned[0] / "wdr-seed0"
    measured, card = results(folder), ModelCard.load(folder / "README.md")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, MultiTokenForCausalLM)
    assert model.config.ensemble_weight == measured["ensemble_weight"]
    blocks = pack_blocks(load_corpus(small_text())["test"], tokenizer, 64)
    assert perplexity_of_blocks(model, blocks).per_token == pytest.approx(measured["perplexity_ensemble"], rel=1e-4)
    assert {one.metric_name: one.metric_value for one in card.data.eval_results}["perplexity"] == measured["perplexity"]
    run_code(folder, folder.parent)


def test_the_untouched_base_is_measured_on_as_many_words_as_asked_for_beside_its_best_temperature(finetuned, tmp_path):
    plain = results(finetuned[0] / "plain-seed0")
    assert plain["perplexity_temperature"] == plain[f"perplexity_at_{plain['temperature']:g}"]
    frozen = ["--model_name_or_path", finetuned[0] / "plain-seed0", "--target", "null", "--lora_rank", "2"]
    run(*frozen, "--num_train_epochs", "0", "--max_test_words", "90", "--output_dir", tmp_path)
    base = results(tmp_path)
    assert 90 <= base["test_words"] < plain["test_words"] and base["parameters"] > plain["parameters"]
    blocks = pack_blocks(first_test_words(90), AutoTokenizer.from_pretrained(finetuned[0] / "plain-seed0"), 64)
    untouched = AutoModelForCausalLM.from_pretrained(finetuned[0] / "plain-seed0")
    assert base["perplexity"] == pytest.approx(perplexity_of_blocks(untouched, blocks).per_token, rel=1e-4)


def test_a_stream_is_trained_on_as_its_text_is(finetuned, tmp_path):
    data, settings = tmp_path / "data", tmp_path / "stream.yaml"
    for split, text in load_corpus(small_text()).items():
        text.rename_column("text", "said").to_parquet(data / f"{split}.parquet")
    smoke = ROOT / "recipes" / "settings" / "finetune_gptneo_wdr" / "smoke.yaml"
    settings.write_text(f"include: {smoke}\nmax_train_words: null\nmax_steps: 3\nhead_warmup_steps: 0\n")
    given = ["--model_name_or_path", finetuned[0] / "plain-seed0", "--dataset", data, "--text_column", "said"]
    given += ["--train_sampling_strategy", "sequential", "--disable_tqdm", "true"]

    def train(streaming, folder):
        options = ["--streaming", streaming, "--output_dir", tmp_path / folder]
        run_recipe("finetune_gptneo_wdr", *given, *options, settings=settings)
        return {name: value for name, value in results(tmp_path / folder).items() if "perplexity" in name}

    found = [train("true", "stream"), train("false", "whole")]
    assert found[0] == found[1]
    (data / "validation.parquet").unlink()
    with pytest.raises(ValueError, match="lacks validation"):
        train("true", "lacking")


_AS_TORCHRUN = """
import runpy, sys

del sys.argv[1]
sys.path.insert(0, "recipes")
runpy.run_path("recipes/finetune_gptneo_wdr.py", run_name="__main__")
"""


def test_two_processes_as_torchrun_starts_them_train_one_model(tmp_path):
    steps = ["--max_steps", "2", "--output_dir"]
    given = ["recipes/settings/finetune_gptneo_wdr/smoke.yaml", *SMALL, *steps, tmp_path / "two"]
    printed = run_processes(_AS_TORCHRUN, tmp_path / "script", *given, "--per_device_train_batch_size", "4")
    assert "".join(printed).count("Model and card") == 1
    run(*steps, tmp_path / "one", "--per_device_train_batch_size", "8")
    one, two = (results(tmp_path / name)["perplexity"] for name in ("one", "two"))
    assert one == pytest.approx(two, rel=0.02)  # Transformers draws another order of the rows


def test_lora_on_a_given_base_model_and_text(tmp_path):
    make_backbone("llama", vocab_size=300).save_pretrained(tmp_path / "base")
    words = ["one two three four five six seven\n"] * 200
    train_bpe_tokenizer(words, 262).save_pretrained(tmp_path / "base")
    (tmp_path / "text.txt").write_text("".join(words))
    run(
        *("--model_name_or_path", tmp_path / "base", "--dataset", tmp_path / "text.txt", "--lora_rank", "2"),
        *("--output_dir", tmp_path / "out", "--block_size", "16", "--prompt", "one"),
        *("--head_warmup_steps", "2", "--head_learning_rate", "0.01"),
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(model.backbone.state_dict()[name], base.state_dict()[name])
    assert torch.equal(model.get_output_embeddings().weight, base.get_output_embeddings().weight)


def test_a_trained_model_is_uploaded_with_its_card_and_comes_back(hub, tmp_path):
    settings = "recipes/settings/finetune_gptneo_wdr/smoke.yaml"
    done = hub.run(
        ROOT / "recipes" / "finetune_gptneo_wdr.py",
        *(settings, *SMALL, "--output_dir", tmp_path / "run"),
        *("--push_to_hub", "true", "--hub_model_id", "me/wdr", "--save_only_model", "true", "--max_steps", 2),
    )
    assert done.returncode == 0, done.stderr
    files = hub.files("me/wdr")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert b"model-index" in files["README.md"] and b"perplexity" in files[".eval_results/hf_targets.yaml"]
    code = (
        "import hf_targets; from transformers import AutoModelForCausalLM as A, AutoTokenizer as T;"
        "m = A.from_pretrained('me/wdr'); t = T.from_pretrained('me/wdr');"
        "print(type(m).__name__, m(**t('The', return_tensors='pt')).logits.sum().item())"
    )
    printed = hub.run(code).stdout.split()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    ids = AutoTokenizer.from_pretrained(tmp_path / "run")("The", return_tensors="pt")
    assert printed[0] == "MultiTokenForCausalLM"
    assert float(printed[1]) == pytest.approx(model(**ids).logits.sum().item(), rel=1e-5)
