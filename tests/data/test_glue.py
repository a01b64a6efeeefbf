"""Tasks of GLUE from files and from the Hub."""

import re

import pytest
from datasets import Dataset, DatasetDict

from hf_targets import GLUE_TASKS, load_glue
from hf_targets.data import glue
from tests.data.glue_files import write_glue

FIRST = {
    "cola": {"sentence": "The cats number 1 sleep.", "label": 1},
    "sst2": {"sentence": "film number 1 is good ", "label": 1},
    "mrpc": {"sentence1": 'He said " no 1 .', "sentence2": 'He said " yes 1 .', "label": 1},
    "rte": {"sentence1": "It rains in 1.", "sentence2": "It is wet.", "label": 1},
}


@pytest.mark.parametrize("name", FIRST)
def test_files_are_read_line_by_line_as_they_stand(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(write_glue(tmp_path)))
    data = load_glue(name)
    assert {str(split): len(rows) for split, rows in data.items()} == {"train": 12, "validation": 6}
    assert data["train"][1] == FIRST[name] and data["validation"][1] == FIRST[name]
    assert data["train"]["label"] == [0, 1] * 6
    assert set(data["train"].column_names) == {*GLUE_TASKS[name].texts, "label"}


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_without_files_a_task_is_that_of_the_hub(name, monkeypatch):
    monkeypatch.delenv("HF_TARGETS_DATA", raising=False)
    task, asked = GLUE_TASKS[name], []

    def load(hub_name, config):
        asked.append((hub_name, config))
        rows = Dataset.from_list([{**dict.fromkeys(task.texts, "a"), "label": 0, "idx": 3}])
        return DatasetDict({split: rows for split in ("train", "validation", "validation_matched", "test")})

    monkeypatch.setattr(glue, "load_named", load)
    assert load_glue(name)["validation"].column_names == [*task.texts, "label"] and asked == [("nyu-mll/glue", name)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("index\tsentence1\tsentence2\tlabel\n0\tone\n", r"line 2 of .*dev\.tsv must have at least 4 columns .* got 2"),
        (
            "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tperhaps\n",
            r"line 2 of .* must have a label of entailment, not_entailment, got 'perhaps'",
        ),
        ("index\tsentence1\tsentence2\tlabel\n\n", r"dev\.tsv has no example"),
        ("0\ta\tb\tentailment\n1\ta\tb\tentailment\n", r"dev\.tsv must begin with a line of column names, and begins"),
    ],
)
def test_a_malformed_file_is_told(text, told, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(write_glue(tmp_path)))
    (tmp_path / "glue" / "RTE" / "dev.tsv").write_text(text)
    with pytest.raises(ValueError, match=told):
        load_glue("rte")


def test_a_missing_file_and_an_unknown_task_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(write_glue(tmp_path)))
    (tmp_path / "glue" / "RTE" / "dev.tsv").unlink()
    with pytest.raises(ValueError, match=re.escape("dev.tsv(.gz|.xz)")):
        load_glue("rte")
    (tmp_path / "glue" / "CoLA").rename(tmp_path / "glue" / "cola")
    with pytest.raises(ValueError, match=r"the network, .*; or put its train\.tsv and dev\.tsv into glue/CoLA below"):
        load_glue("cola")
    with pytest.raises(ValueError, match=r"task must be one of cola, .*, got 'CoLA'"):
        load_glue("CoLA")
