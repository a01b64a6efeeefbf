import json
from dataclasses import dataclass

import pytest

from hf_targets.multitoken.trainer import MultiTokenTrainingArguments
from hf_targets.training.experiments import RECORD_NAME, Experiment
from hf_targets.training.outputs import remove_output
from tests.training.test_outputs import make, names_in


@dataclass
class Setup:
    """A recipe's settings."""

    size: int = 4
    model: str | None = None
    overwrite_output_dir: bool = False
    projection: str = "mlp"  # begins as an argument of training does that changes nothing, "project"
    others: object = None
    seeds: tuple = (3, 6)


def run(folder, rows=("plain", "wdr"), size=4, model=None, overwrite=False, resume=None, others=None, **arguments):
    options = {"use_cpu": True, "report_to": "none", **arguments}
    args = MultiTokenTrainingArguments(output_dir=str(folder), resume_from_checkpoint=resume, **options)
    return Experiment(
        Setup(size, model, overwrite, others=others), args, outputs=["results.json", "model.safetensors"], models=rows
    )


@pytest.fixture
def used(tmp_path):
    """Return the folder of a run that has trained two rows, with things of the user's in it."""
    run(tmp_path / "out").begin()
    make(tmp_path / "out", "plain/checkpoint-3/state", "wdr/checkpoint-6/state", "results.json")
    make(tmp_path / "out", "notes.txt", "plain/notes.txt", "other/checkpoint-1/state")
    return tmp_path / "out"


KEPT = ["notes.txt", "other/checkpoint-1/state", "plain/notes.txt"]


def test_a_run_is_begun_where_nothing_is_and_its_settings_are_recorded(tmp_path):
    begun = run(tmp_path / "out", resume="true")
    assert not (tmp_path / "out").exists()
    begun.begin()
    settings = json.loads((tmp_path / "out" / RECORD_NAME).read_text())["settings"]
    assert settings["recipe"]["size"] == 4
    assert settings["training"]["learning_rate"] == 5e-5


def test_an_older_run_is_kept_until_it_may_go(used):
    before = names_in(used)
    with pytest.raises(ValueError, match="is not empty; name another, or pass --overwrite_output_dir true"):
        run(used)
    run(used, overwrite=True)
    run(used, resume="true").begin()
    assert names_in(used) == before


def test_overwriting_removes_all_that_the_older_run_wrote_and_nothing_else(used):
    begun = run(used, rows=["wdr"], size=8, overwrite=True)
    begun.begin()
    assert names_in(used) == sorted([*KEPT, RECORD_NAME])
    make(used, "wdr/checkpoint-1/state")
    begun.begin()  # once
    assert names_in(used) == sorted([*KEPT, RECORD_NAME, "wdr/checkpoint-1/state"])


@pytest.mark.parametrize(
    "others",
    [
        ["elsewhere", "USED/plain"],
        "USED/wdr/checkpoint-{seed}",
        '{"plain": "elsewhere", "wdr": "USED/wdr/checkpoint-{seed}"}',
        {"plain": ["USED/plain/checkpoint-{seed}"]},
    ],
    ids=["list", "seeds", "json", "nested"],
)
def test_what_a_setting_names_in_a_list_in_json_or_by_seed_is_not_removed(others, used):
    before, others = names_in(used), json.loads(json.dumps(others).replace("USED", str(used)))
    with pytest.raises(ValueError, match=r"others .* is in the output of the experiment that this one replaces"):
        run(used, overwrite=True, others=others)
    assert names_in(used) == before
    run(used, overwrite=True, others=["elsewhere", "{seed}", '{"a": "else{seed}"}', "[not json"])


def test_what_a_setting_names_from_the_home_folder_is_not_removed(used, monkeypatch):
    monkeypatch.setenv("HOME", str(used.parent))
    with pytest.raises(ValueError, match=r"model ~/.* is in the output of the experiment that this one replaces"):
        run(used, model=f"~/{used.name}/plain", overwrite=True)
    run(used, model="~no-such-user/plain", overwrite=True)


@pytest.mark.parametrize("model", ["", "plain", "wdr/checkpoint-6", "wdr/checkpoint-6/state"])
def test_what_a_setting_names_is_not_removed(model, used):
    before = names_in(used)
    with pytest.raises(ValueError, match=r"model .* is in the output of the experiment that this one replaces"):
        run(used, model=str(used / model), overwrite=True)
    assert names_in(used) == before
    for kept in (used / "other", used / "notes.txt", used.parent, used.parent / "model", "gpt2"):
        run(used, model=str(kept), overwrite=True)


def test_a_removal_that_is_broken_off_is_finished_when_the_run_is_resumed(used, monkeypatch):
    def killed(folder, patterns):
        (folder / "results.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_targets.training.experiments.remove_output", killed)
    with pytest.raises(KeyboardInterrupt):
        run(used, rows=["wdr"], size=8, overwrite=True).begin()
    monkeypatch.setattr("hf_targets.training.experiments.remove_output", remove_output)
    with pytest.raises(ValueError, match="size was 8 and is now 4"):
        run(used, resume="true")
    run(used, rows=["wdr"], size=8, resume="true").begin()
    assert names_in(used) == sorted([*KEPT, RECORD_NAME])
    make(used, "wdr/checkpoint-1/state")
    run(used, rows=["wdr"], size=8, resume="true").begin()
    assert "wdr/checkpoint-1/state" in names_in(used)


@pytest.mark.parametrize("way", [{"overwrite": True}, {"resume": "true"}])
def test_what_no_run_has_written_is_in_the_way_of_one_that_would(way, tmp_path):
    make(tmp_path, "wdr/checkpoint-500/state", "results.json", "notes.txt")
    with pytest.raises(
        ValueError, match=r"would write over .*results.json, .*wdr/checkpoint-500, and the folder has no run.json"
    ):
        run(tmp_path, **way)
    (tmp_path / "results.json").unlink()
    run(tmp_path, rows=["simple"], **way).begin()
    assert names_in(tmp_path) == ["notes.txt", RECORD_NAME, "wdr/checkpoint-500/state"]


def test_a_row_of_the_name_of_the_users_own_folder_is_refused_by_a_later_run_too(used):
    with pytest.raises(ValueError, match=r"would write over .*other/checkpoint-1, which the experiment recorded"):
        run(used, rows=["other"], overwrite=True)


def test_a_row_that_is_a_link_is_refused(used, tmp_path):
    (tmp_path / "disk").mkdir()
    (used / "simple").symlink_to(tmp_path / "disk")
    with pytest.raises(ValueError, match="simple must be a folder of its own"):
        run(used, rows=["simple"], overwrite=True)


def test_other_settings_are_told_when_a_run_is_resumed(used):
    with pytest.raises(ValueError, match=r"size was 4 and is now 8; learning_rate was 5e-05 and is now 0\.1; give"):
        run(used, size=8, learning_rate=0.1, resume="true")
    with pytest.raises(ValueError, match=r"num_train_epochs was 3\.0 and is now 4"):
        run(used, num_train_epochs=4, resume="true")


def test_settings_that_change_no_number_may_differ(used, tmp_path):
    free = {
        "disable_tqdm": True,
        "run_name": "again",
        "logging_steps": 7,
        "log_level": "error",
        "hub_model_id": "me/it",
    }
    free |= {"dataloader_num_workers": 2, "save_total_limit": 1, "logging_first_step": True, "hub_token": "secret"}
    free |= {"per_device_eval_batch_size": 1, "eval_accumulation_steps": 2, "project": "other"}
    run(used, resume="True", **free).begin()
    assert "secret" not in (used / RECORD_NAME).read_text()
    used.rename(tmp_path / "moved")
    run(tmp_path / "moved", resume="true", overwrite=True)


def test_only_the_name_itself_makes_a_setting_one_that_changes_no_number(used):
    args = MultiTokenTrainingArguments(
        output_dir=str(used), resume_from_checkpoint="true", use_cpu=True, report_to="none"
    )
    outputs = ["results.json", "model.safetensors"]
    with pytest.raises(ValueError, match="projection was 'mlp' and is now 'linear'"):
        Experiment(Setup(projection="linear"), args, outputs=outputs, models=["plain", "wdr"])


def test_setting_names_of_another_recipe_are_other_settings(used):
    record = json.loads((used / RECORD_NAME).read_text())
    record["settings"]["recipe"] = {"depth": 2, "model": None}
    record["settings"]["training"]["of_another_release"] = 1
    (used / RECORD_NAME).write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"depth was 2 and is now None; .*give those"):
        run(used, resume="true")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": {"recipe": 1}}'])
def test_a_record_that_is_none_is_told(text, tmp_path):
    (tmp_path / RECORD_NAME).write_text(text)
    with pytest.raises(ValueError, match=r"run\.json is not the record of an experiment"):
        run(tmp_path, overwrite=True)


def test_a_record_that_names_what_is_outside_removes_nothing_there(used, tmp_path):
    make(tmp_path, "outside/checkpoint-1/state", "results.json")
    record = json.loads((used / RECORD_NAME).read_text())
    record["rows"] += ["../outside", ".", "..", ""]
    record["outputs"] += ["../*", str(tmp_path / "results.json"), "..", ".", "plain/.."]
    (used / RECORD_NAME).write_text(json.dumps(record))
    run(used, overwrite=True).begin()
    assert (tmp_path / "results.json").exists()
    assert names_in(tmp_path / "outside") == ["checkpoint-1/state"]
    assert set(KEPT) <= set(names_in(used))


@pytest.mark.parametrize(("resume", "told"), [("some/path", "must be true or false"), ("maybe", "got 'maybe'")])
def test_a_checkpoint_is_not_named(resume, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run(tmp_path, resume=resume)


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    make(tmp_path, "out")
    with pytest.raises(ValueError, match="out is a file; name a folder"):
        run(tmp_path / "out")


def test_a_run_recorded_before_a_setting_was_there_is_resumed_with_its_default(used):
    record = json.loads((used / RECORD_NAME).read_text())
    del record["settings"]["recipe"]["projection"]
    (used / RECORD_NAME).write_text(json.dumps(record))
    run(used, resume="true")
    record["settings"]["recipe"]["size"] = 5
    (used / RECORD_NAME).write_text(json.dumps(record))
    with pytest.raises(ValueError, match="size was 5 and is now 4; give"):
        run(used, resume="true")
