import gc
import json
import weakref
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from hf_targets import MultiTokenSeq2SeqTrainingArguments, MultiTokenTrainingArguments, best_checkpoints, load_mean
from hf_targets.multitoken.trainer import MultiTokenTrainer
from hf_targets.training import comparison
from hf_targets.training.experiments import Experiment
from tests.multitoken.test_trainer import blocks
from tests.tiny_models import make_backbone, make_model
from tests.trainer_runs import assert_same, weights

train_run, train_runs = (
    partial(train, make_trainer=MultiTokenTrainer) for train in (comparison.train_run, comparison.train_runs)
)
CORPUS = {"train": blocks(16), "validation": blocks(8, seed=1), "test": blocks(8, seed=2)}


@dataclass
class Setup:
    overwrite_output_dir: bool = False


def arguments(folder, **options):
    defaults = {"num_train_epochs": 6, "learning_rate": 3e-2, "lr_scheduler_type": "constant", "disable_tqdm": True}
    return MultiTokenTrainingArguments(
        output_dir=str(folder), **{**defaults, "use_cpu": True, "ensemble_weights": [0.0, 0.2, 0.5], **options}
    )


@pytest.mark.parametrize("plain", [True, False])
def test_the_checkpoint_of_the_lowest_validation_perplexity_is_measured(plain, tmp_path):
    make = make_backbone if plain else make_model
    row, trainer = train_run("one", lambda: make("gpt2"), arguments(tmp_path), CORPUS)
    seen = [entry["eval_perplexity"] for entry in row.history if "eval_perplexity" in entry]
    assert len(seen) == 6
    assert min(seen) < seen[-1]  # it has overfitted by the end, or this shows nothing
    assert row.validation["perplexity"] == pytest.approx(min(seen), rel=1e-6)
    again = trainer.evaluate(CORPUS["test"])
    assert row.test["perplexity"] == pytest.approx(again["eval_perplexity"])
    if plain:
        assert row.ensemble_weight is None
        assert row.test_perplexity(ensemble=True) is None
    else:
        best = min((0.2, 0.5), key=lambda weight: row.validation[f"perplexity_{weight}"])
        assert row.ensemble_weight == best
        assert row.test_perplexity(ensemble=True) == row.test[f"perplexity_{best}"]


def test_the_mean_of_the_best_checkpoints_is_what_is_measured(tmp_path):
    options = {"save_total_limit": 3, "num_train_epochs": 3}
    row, trainer = train_run(
        "one", lambda: make_backbone("gpt2"), arguments(tmp_path, **options), CORPUS, average_checkpoints=3
    )
    seen = [entry["eval_perplexity"] for entry in row.history if "eval_perplexity" in entry]
    assert row.validation["perplexity"] not in seen
    expected = make_backbone("gpt2")
    load_mean(expected, best_checkpoints(tmp_path / "one-seed42", 3))
    assert_same(weights(trainer.model), weights(expected))
    assert row.test["perplexity"] == pytest.approx(trainer.evaluate(CORPUS["test"])["eval_perplexity"])
    with pytest.raises(ValueError, match="save_total_limit must keep the 4 checkpoints that are averaged"):
        train_run("two", lambda: None, arguments(tmp_path, **options), CORPUS, average_checkpoints=4)


def test_no_limit_on_checkpoints_is_no_error(tmp_path):
    options = {"save_total_limit": 0, "num_train_epochs": 1}
    assert train_run("one", lambda: make_backbone("gpt2"), arguments(tmp_path, **options), CORPUS)[0].test


def test_evaluations_that_write_texts_are_refused_before_training(tmp_path):
    args = MultiTokenSeq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, use_cpu=True)
    with pytest.raises(ValueError, match="evaluations with predict_with_generate=True do not measure; leave it out"):
        train_run("one", lambda: None, args, CORPUS)


def test_rows_start_from_the_same_random_state(tmp_path):
    drawn = []

    def make():
        drawn.append(torch.rand(3))
        return make_backbone("gpt2")

    for name in ("one", "two"):
        train_run(name, make, arguments(tmp_path, num_train_epochs=1), CORPUS)
    assert torch.equal(*drawn)


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    options = {"learning_rate": 0.3, "num_train_epochs": 12}
    first, _ = train_run("one", lambda: make_model("gpt2"), arguments(tmp_path, **options), CORPUS, patience=1)
    evaluations = [entry for entry in first.history if "eval_perplexity" in entry]
    assert len(evaluations) < 12
    again, _ = train_run(
        "one", lambda: make_model("gpt2"), arguments(tmp_path, **options), CORPUS, patience=1, resume=True
    )
    assert again.test == pytest.approx(first.test, rel=1e-6)
    assert len([entry for entry in again.history if "eval_perplexity" in entry]) == len(evaluations)


def test_what_does_not_fit_is_told_while_the_older_output_is_whole(tmp_path):
    (tmp_path / "one-seed42").mkdir()
    (tmp_path / "one-seed42" / "old").write_text("kept")
    options = {"eval_strategy": "epoch", "save_strategy": "no"}
    with pytest.raises(ValueError, match="both come at the same steps"):
        train_run("one", lambda: make_model("gpt2"), arguments(tmp_path, **options), CORPUS)
    long = {**CORPUS, "train": blocks(2, length=65)}
    with pytest.raises(ValueError, match="at most the model's 64 positions, got 65"):
        train_run("one", lambda: make_model("gpt2"), arguments(tmp_path), long)
    assert (tmp_path / "one-seed42" / "old").read_text() == "kept"


@pytest.mark.parametrize("name", ["../x", "", ".", "..", "a/b"])
def test_a_row_name_may_not_leave_the_output_folder(name, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "out" / "a" / "b").mkdir(parents=True)
    with pytest.raises(ValueError, match="rows are names of folders"):
        train_run(name, lambda: make_model("gpt2"), arguments(tmp_path / "out"), CORPUS)
    assert (tmp_path / "x").exists()
    assert (tmp_path / "out" / "a" / "b").exists()


def test_a_row_folder_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "disk" / "checkpoint-7").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "one-seed42").symlink_to(tmp_path / "disk")
    with pytest.raises(ValueError, match=r"must be a folder of its own, .* and is a link"):
        train_run("one", lambda: make_model("gpt2"), arguments(tmp_path / "out"), CORPUS)
    assert (tmp_path / "disk" / "checkpoint-7").exists()


def test_a_row_begins_without_older_checkpoints_and_leaves_other_files(tmp_path):
    (tmp_path / "one-seed42" / "checkpoint-999").mkdir(parents=True)
    (tmp_path / "one-seed42" / "notes.txt").touch()
    begun = []
    train_run(
        "one",
        lambda: make_model("gpt2"),
        arguments(tmp_path, num_train_epochs=1),
        CORPUS,
        begin=lambda: begun.append((tmp_path / "one-seed42" / "checkpoint-999").exists()),
    )
    assert begun == [True]
    assert sorted(path.name for path in (tmp_path / "one-seed42").iterdir()) == [
        "checkpoint-2",
        "notes.txt",
        "training.json",
    ]


def test_a_finished_row_is_not_trained_again_though_its_last_checkpoint_is_not_the_best(tmp_path, monkeypatch):
    options = {"save_total_limit": 1, "learning_rate": 0.1}
    first, _ = train_run("one", lambda: make_model("gpt2"), arguments(tmp_path, **options), CORPUS)
    (kept,) = (tmp_path / "one-seed42").glob("checkpoint-*")
    assert kept.name != "checkpoint-12"  # or this shows nothing
    monkeypatch.setattr(MultiTokenTrainer, "training_step", None)
    again, _ = train_run("one", lambda: make_model("gpt2"), arguments(tmp_path, **options), CORPUS, resume=True)
    assert again.test == pytest.approx(first.test, rel=1e-6)
    assert (again.seconds, again.history) == (first.seconds, first.history)


def test_rows_of_several_seeds_differ_and_each_has_its_folder(tmp_path):
    def make():
        return make_model("gpt2")

    rows = [train_run("one", make, arguments(tmp_path, num_train_epochs=1), CORPUS, seed=seed)[0] for seed in (3, 5)]
    assert [row.seed for row in rows] == [3, 5]
    assert rows[0].test["perplexity"] != rows[1].test["perplexity"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one-seed3", "one-seed5"]
    again, _ = train_run("one", make, arguments(tmp_path / "again", num_train_epochs=1, seed=3), CORPUS)
    assert again.test == rows[0].test


def test_no_figure_of_the_test_text_is_chosen_on_it(tmp_path):
    weights = {"ensemble_weights": [0.0, 0.1, 0.9]}
    row, trainer = train_run("one", lambda: make_model("gpt2"), arguments(tmp_path, **weights), CORPUS)
    on_test = trainer.evaluate(CORPUS["test"])
    assert {name: value for name, value in row.test.items() if "ensemble" in name} == {
        f"{level}_ensemble": on_test[f"eval_{level}_{row.ensemble_weight:g}"]
        for level in ("perplexity", "word_perplexity")
    }
    assert row.test_perplexity(ensemble=True) == on_test[f"eval_perplexity_{row.ensemble_weight:g}"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_that_is_no_terminal_has_no_bars_of_files(is_terminal, tmp_path, capsys, monkeypatch):
    args = arguments(tmp_path, num_train_epochs=1, disable_tqdm=False)
    make = {"one": lambda: make_backbone("gpt2")}
    experiment = Experiment(Setup(), args, outputs=(), models=["one"], seeds=[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    for _, trainer in train_runs(make, args, CORPUS, experiment, seeds=[0], settings={}):
        trainer.model.save_pretrained(tmp_path / "model")
    assert ("shards" in capsys.readouterr().err) is is_terminal


def test_a_training_of_no_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"at least one update, got num_train_epochs=0"):
        train_run("one", lambda: make_model("gpt2"), arguments(tmp_path / "out", num_train_epochs=0), CORPUS)
    assert not (tmp_path / "out").exists()


def test_a_row_begins_without_the_model_and_the_optimizer_of_the_row_before(tmp_path):
    alive, before = [], []

    def make():
        gc.collect()
        alive.extend(reference() is not None for reference in before)
        return make_model("gpt2")

    args = arguments(tmp_path, num_train_epochs=1)
    run = Experiment(Setup(), args, outputs=(), models=["one", "two"], seeds=[0])
    for _, trainer in train_runs({"one": make, "two": make}, args, CORPUS, run, seeds=[0], settings={}):
        before += [weakref.ref(trainer.model), weakref.ref(trainer.optimizer)]
    assert alive == [False, False]


def test_a_test_text_that_is_given_later_is_measured_without_training_again(tmp_path, monkeypatch):
    searched = {split: CORPUS[split] for split in ("train", "validation")}
    experiment = Experiment(
        Setup(), arguments(tmp_path), outputs=("results.json", "chosen.json"), models=["one"], seeds=[0]
    )
    make = {"one": lambda: make_model("gpt2")}
    plan = {"seeds": [0], "settings": {}}
    ((first, _),) = train_runs(make, arguments(tmp_path), searched, experiment, **plan)
    assert first[0].test == {}
    monkeypatch.setattr(MultiTokenTrainer, "training_step", lambda *_: pytest.fail("trained again"))
    ((again, _),) = train_runs(
        make, arguments(tmp_path), CORPUS, experiment, resume=True, results_name="chosen.json", **plan
    )
    assert again[0].validation == pytest.approx(first[0].validation)
    assert again[0].test["perplexity"] > 1
    assert json.loads((tmp_path / "results.json").read_text())["rows"][0]["test"] == {}
    assert json.loads((tmp_path / "chosen.json").read_text())["rows"][0]["test"] == again[0].test
