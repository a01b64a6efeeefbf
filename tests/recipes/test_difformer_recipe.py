"""The recipe that trains a Gaussian diffusion model, its table, and the models that they leave."""

import json

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_targets import DifformerForConditionalGeneration
from tests.lab.test_card import run_code
from tests.recipes.running import run_recipe

SMALL = ["--max_train_pairs", "30", "--max_eval_pairs", "3", "--disable_tqdm", "true"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("difformer") / "out"
    return folder, run_recipe("tables/train_difformer", *SMALL, "--output_dir", folder)


@pytest.mark.parametrize("name", ["difformer", "wdr", "curves"])
def test_the_models_of_a_table_write_and_have_its_scores_on_their_cards(compared, name):
    folder = compared[0] / f"{name}-seed0"
    results = json.loads((folder / "results.json").read_text())
    assert {"bleu", "chrf", "validation_bleu"} <= results.keys() and ("bleu_ensemble" in results) == (name == "wdr")
    assert f"{results['chrf']:.2f}" in compared[1] and "| Valid BLEU |" in compared[1]
    assert (compared[0] / "validation_bleu.png").is_file()
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, DifformerForConditionalGeneration)
    assert model.generation_config.num_reverse_steps == 8 and model.generation_config.num_lengths == 2
    assert (model.config.latent_size, model.config.curve is None, model.config.multitoken is None) == (
        *(16, name != "curves", name != "wdr"),
    )
    output = model.generate(**tokenizer(["a text", "another one"], padding=True, return_tensors="pt"))
    assert len(tokenizer.batch_decode(output)) == 2
    card = ModelCard.load(folder / "README.md")
    assert {one.metric_name: one.metric_value for one in card.data.eval_results}["chrf"] == results["chrf"]
    run_code(folder, folder.parent)
