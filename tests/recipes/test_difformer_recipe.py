"""The recipe that trains Gaussian diffusion models: its tables, the models that it leaves, and what it refuses."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_targets import DifformerForConditionalGeneration
from tests.recipes.running import run_recipe
from tests.training.test_model_card import run_code

SMALL = ["--max_train_pairs", "60", "--max_eval_pairs", "6", "--disable_tqdm", "true", "--num_reverse_steps", "6"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("difformer") / "out"
    return folder, run_recipe("train_difformer", *SMALL, "--output_dir", str(folder))


def test_the_comparison_leaves_scores_and_models_that_write(trained):
    folder, printed = trained
    scores = json.loads((folder / "scores.json").read_text())["scores"]
    assert list(scores) == ["difformer", "wdr", "wdr, ensemble", "curves"]
    assert f"| difformer | {scores['difformer'][0]['bleu']:.2f} |" in printed
    assert "BLEU is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in printed
    for name in ("difformer", "wdr", "curves"):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder / f"{name}-seed0")
        tokenizer = AutoTokenizer.from_pretrained(folder / f"{name}-seed0")
        assert isinstance(model, DifformerForConditionalGeneration)
        output = model.generate(**tokenizer(["a text", "another one"], padding=True, return_tensors="pt"))
        assert len(tokenizer.batch_decode(output)) == 2
        assert model.generation_config.num_reverse_steps == 6 and model.generation_config.num_lengths == 2
        assert "AutoModelForSeq2SeqLM" in run_code(folder / f"{name}-seed0", folder)
    assert (model.config.curve.num_control_points_ratio, model.config.curve.degree) == (2.0, 2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--rows", '{"a": {"latent": 3}}'], "row a has no such field: latent"),
        (["--rows", '{"a": {"preset": "ddpm"}}'], "row a: preset must be one of difformer, dinoiser"),
        (["--num_noises", "0"], "num_noises must be 1 or more, got 0"),
        (["--num_reverse_steps", "5"], "num_reverse_steps=5 leaves no step after num_skipped_steps=5"),
        (["--ensemble_weight", "1.5"], r"ensemble_weight \(lambda\) must be in \[0, 1\], got 1.5"),
        (["--average_checkpoints", "3"], "save_total_limit must keep the 3 checkpoints"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_written(given, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("train_difformer", *SMALL, *given, "--output_dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
