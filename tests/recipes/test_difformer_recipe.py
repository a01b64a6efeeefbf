"""The recipe that trains Gaussian diffusion models: its tables, the models that it leaves, and what it refuses."""

import json

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_targets import DifformerConfig, DifformerForConditionalGeneration
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
        card = ModelCard.load(folder / f"{name}-seed0" / "README.md")
        found = {result.metric_type: result.metric_value for result in card.data.eval_results}
        assert found == {kind: pytest.approx(scores[name][0][kind]) for kind in ("bleu", "chrf")}
    assert (model.config.curve.num_control_points_ratio, model.config.curve.degree) == (2.0, 2)


def test_pairs_of_any_split_that_do_not_fit_are_told_before_anything_is_trained(tmp_path):
    rows = [{"source": "a b c", "target": "x y"}] * 12
    for split, long in (("train", 0), ("validation", 0), ("test", 40)):
        lines = [*rows, {"source": "a", "target": "x y " * 30}] if long else rows
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    data = ["--dataset", str(tmp_path), "--source_column", "source", "--target_column", "target"]
    row = ["--rows", '{"a": {"latent_size": 16, "num_length_classes": 20}}', "--max_train_pairs", "12"]
    with pytest.raises(ValueError, match="1 of 13 pairs differ in length by more than 20 length classes"):
        run_recipe("train_difformer", *data, *row, "--output_dir", str(tmp_path / "out"))
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_fields_of_a_row_come_before_those_of_the_settings_and_of_the_preset(tmp_path):
    rows = {"first": {"latent_size": 16}, "second": {"latent_size": 16, "preset": "dinoiser", "num_hidden_layers": 2}}
    rows["third"] = {**rows["first"], "dropout": 0.25}
    run_recipe("train_difformer", *SMALL, "--max_steps", "1", "--rows", json.dumps(rows), "--output_dir", str(tmp_path))
    configs = [DifformerConfig.from_pretrained(tmp_path / f"{name}-seed0") for name in rows]
    assert [(config.dropout, config.num_hidden_layers) for config in configs] == [(0.3, 1), (0.2, 2), (0.25, 1)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--rows", '{"a": {"latent": 3}}'], "row a has no such field: latent"),
        (["--rows", '{"a": {"preset": "ddpm"}}'], "row a: preset must be one of 'difformer', 'dinoiser'"),
        (["--rows", '{"a": {"vocab_size": 30}}'], "row a: vocab_size follows from the tokenizer; leave it out"),
        (["--rows", '{"a": {}}', "--dropout", "1.5"], r"dropout must be in \[0, 1\), got 1.5"),
        (["--rows", '{"a": {"num_attention_heads": 3}}'], "row a: hidden_size must be a multiple of 2 x num_attention"),
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
