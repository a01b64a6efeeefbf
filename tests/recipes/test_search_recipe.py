"""The search over N, alpha and lambda as a recipe."""

import json

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM

from hf_targets.training import comparison
from tests.recipes.running import run_recipe, small_text

SMALL = ["--max_train_words", "600", "--disable_tqdm", "true", "--dataset", small_text(), "--block_size", "16"]
GRID = ["--ngram_sizes", "2", "--loss_weights", "0.3", "1", "--num_train_epochs", "2"]


def run(folder, *arguments):
    return run_recipe("search_multitoken", *SMALL, *GRID, "--output_dir", folder, *arguments)


def rows_of(folder, file="results.json"):
    return json.loads((folder / file).read_text())["rows"]


def test_a_search_measures_only_the_chosen_model_on_the_test_text_and_goes_on_where_it_was_killed(
    tmp_path, monkeypatch
):
    folder, train_run = tmp_path / "out", comparison.train_run

    def killed(name, *args, **kwargs):
        if name == "wdr-2-alpha1":
            raise KeyboardInterrupt
        return train_run(name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(comparison, "train_run", killed)
        with pytest.raises(KeyboardInterrupt):
            run(folder)
    assert [row["name"] for row in rows_of(folder)] == ["plain", "wdr-2-alpha0.3"]
    printed = run(folder, "--resume_from_checkpoint", "true")

    rows = {row["name"]: row for row in rows_of(folder)}
    assert list(rows) == ["plain", "wdr-2-alpha0.3", "wdr-2-alpha1"]
    assert all(row["test"] == {} for row in rows.values())
    (chosen,) = rows_of(folder, "chosen.json")
    reached = {
        (name, weight): row["validation"][f"perplexity_{weight:g}"]
        for name, row in rows.items() if name != "plain" for weight in (0.0, 0.2)
    }  # fmt: skip
    name, weight = min(reached, key=reached.__getitem__)
    assert chosen["name"] == name
    assert chosen["validation"] == pytest.approx(rows[name]["validation"])
    assert f"**{reached[name, weight]:.2f} ({weight:g})**" in printed
    assert f"| {chosen['test'][f'perplexity_{weight:g}']:.2f} |" in printed
    assert "There is one seed" in printed
    assert (folder / "search.png").read_bytes().startswith(b"\x89PNG")
    assert [one["point"]["loss_weight"] for one in json.loads((folder / "search.json").read_text())] == [0.3, 1.0]

    model = AutoModelForCausalLM.from_pretrained(folder / f"{name}-seed0")
    assert (model.config.ngram_size, model.config.ensemble_weight) == (2, weight)
    card = ModelCard.load(folder / f"{name}-seed0" / "README.md")
    assert chosen["test"]["perplexity"] in [one.metric_value for one in card.data.eval_results]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ngram_sizes", "1"], r"ngram_sizes \(N\) must be 2 or more each, got 1"),
        (["--loss_weights", "1", "1"], "must name each alpha once, got 1 twice"),
        (["--ensemble_weights", "0", "1.5"], r"must be in \[0, 1\], got 1.5"),
        (["--ensemble_weights", "0", "0.2", "0.2"], "must name each lambda once, got 0.2 twice"),
        (["--ensemble_weights", "0.2"], "must contain 0"),
    ],
)
def test_a_grid_that_cannot_be_searched_is_told_before_anything_is_written(arguments, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run(tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()
