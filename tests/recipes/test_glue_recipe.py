"""The recipe that fine-tunes on GLUE: its table, what it does when it is broken off, and what it refuses."""

import json

import pytest

from tests.lab.glue_files import write_glue
from tests.recipes.running import run_recipe, small_text


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Pre-train two models in no time, and return the setting that names their backbones."""
    folder = tmp_path_factory.mktemp("pretrained") / "out"
    rows = json.dumps({"plain": None, "wdr": {"ngram_size": 1}})
    options = ["--dataset", small_text(), "--max_steps", 1, "--seeds", 0, 1, "--disable_tqdm", "true", "--rows", rows]
    run_recipe("train_masked_lm", *options, "--architecture", "crammed_bert", "--output_dir", folder)
    return json.dumps({name: f"{folder}/{name}-seed{{seed}}/backbone" for name in ("plain", "wdr")})


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(write_glue(tmp_path / "data")))
    return tmp_path / "out"


def run(models, folder, *options):
    given = ["--models", models, "--tasks", "rte", "sst2", "--seeds", 0, 1, "--output_dir", folder]
    return run_recipe("evaluate_glue", *given, "--disable_tqdm", "true", *options)


def test_all_scores_are_in_one_table_and_a_broken_run_goes_on(models, data):
    printed = run(models, data)
    assert "| model | rte | sst2 | average |" in printed and "| against plain |" in printed
    content = json.loads((data / "results.json").read_text())
    expected = [(name, seed, task) for seed in (0, 1) for name in ("plain", "wdr") for task in ("rte", "sst2")]
    assert [(row["name"], row["seed"], row["task"]) for row in content["rows"]] == expected
    (data / "results.json").write_text(json.dumps({**content, "rows": content["rows"][:5]}))
    again = run(models, data, "--resume_from_checkpoint", "true")
    assert [line[:9] for line in again.splitlines() if line.startswith("run ")] == [
        "run 6/8: ",
        "run 7/8: ",
        "run 8/8: ",
    ]
    assert again.partition("Scores of GLUE")[2] == printed.partition("Scores of GLUE")[2]
    assert json.loads((data / "results.json").read_text())["rows"] == content["rows"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tasks", "rte", "qa"], "tasks must be some of cola"),
        (["--tasks", "rte", "rte"], "each once"),
        (["--seeds", "0", "7"], "has no folder"),
        (["--max_length", "128"], "max_length must be at most the 64 tokens"),
        (["--model_fields", '{"pooling": "cls"}'], "CrammedBertConfig has no field pooling"),
    ],
)
def test_a_wrong_setting_is_told_and_leaves_nothing(options, told, models, data):
    with pytest.raises(ValueError, match=told):
        run(models, data, *options)
    assert not data.exists()


def test_a_missing_model_is_told_before_another_is_trained(models, data, tmp_path):
    two = json.dumps({**json.loads(models), "typo": str(tmp_path / "nothing")})
    with pytest.raises(ValueError, match="there is no pre-trained model at"):
        run(two, data)
    assert not data.exists()


def test_an_overwriting_that_was_broken_off_does_not_take_the_older_scores(models, data):
    run(models, data, "--max_length", 16)
    record = json.loads((data / "run.json").read_text())
    record["settings"]["recipe"]["max_length"] = 32
    (data / "run.json").write_text(json.dumps({**record, "is_being_emptied": True}))
    printed = run(models, data, "--max_length", 32, "--resume_from_checkpoint", "true")
    assert printed.count("\nrun ") + printed.startswith("run ") == 8


def test_results_that_were_cut_short_are_told(models, data):
    run(models, data)
    file = data / "results.json"
    file.write_text(file.read_text()[:100])
    with pytest.raises(ValueError, match=r"results\.json is not whole"):
        run(models, data, "--resume_from_checkpoint", "true")
