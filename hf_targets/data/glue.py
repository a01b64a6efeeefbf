"""The tasks of the GLUE benchmark: sentences, or pairs of them, with the class or the number that each has."""

import os
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, DatasetDict

from hf_targets.data.corpora import DATA_VARIABLE, files_below, load_named, read_lines, without_progress_bars

HUB_NAME = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE.

    Attributes:
        folder: Of its files below the folder glue.
        texts: Columns of the data set on the Hub that hold its text, one or two.
        metrics: Names of its scores in `evaluation.glue.SCORES`; GLUE's score of the task is their mean.
        num_labels: Number of classes; 1 for a number from 0 to 5.
        columns: Of its files: those of `texts`, then that of the label, counted from 0; None: it is read from the Hub.
        has_header: Whether its files begin with a line of names.
        classes: Names of classes in its files; none: numbers stand there.
    """

    folder: str
    texts: tuple[str, ...]
    metrics: tuple[str, ...]
    num_labels: int = 2
    columns: tuple[int, ...] | None = None
    has_header: bool = True
    classes: tuple[str, ...] = ()


GLUE_TASKS = {
    "cola": GlueTask("CoLA", ("sentence",), ("matthews",), columns=(3, 1), has_header=False),
    "sst2": GlueTask("SST-2", ("sentence",), ("accuracy",), columns=(0, 1)),
    "mrpc": GlueTask("MRPC", ("sentence1", "sentence2"), ("accuracy", "f1"), columns=(3, 4, 0)),
    "rte": GlueTask(
        "RTE", ("sentence1", "sentence2"), ("accuracy",), columns=(1, 2, 3), classes=("entailment", "not_entailment")
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), ("accuracy",)),
    "qqp": GlueTask("QQP", ("question1", "question2"), ("accuracy", "f1")),
    "mnli": GlueTask("MNLI", ("premise", "hypothesis"), ("accuracy",), num_labels=3),
    "stsb": GlueTask("STS-B", ("sentence1", "sentence2"), ("pearson", "spearman"), num_labels=1),
    "wnli": GlueTask("WNLI", ("sentence1", "sentence2"), ("accuracy",)),
}
"""By their names on the Hub."""


def glue_task(name: str) -> GlueTask:
    """Return a task.

    Raises:
        ValueError: If there is none of this name.
    """
    if name not in GLUE_TASKS:
        raise ValueError(f"task must be one of {', '.join(GLUE_TASKS)}, got {name!r}")
    return GLUE_TASKS[name]


@without_progress_bars()
def load_glue(name: str) -> DatasetDict:
    """Return the splits `train` and `validation` of a task, with the columns of its text and `label`.

    CoLA, SST-2, MRPC and RTE are read from train.tsv and dev.tsv (.gz, .xz) in glue/<task> below the folder that
    `HF_TARGETS_DATA` names, where it has such a folder; all others are from the Hub. The validation split of `mnli` is
    the matched one. GLUE keeps the labels of its test split to itself.

    Raises:
        ValueError: If there is no such task, its data is not found, or a line of a file is malformed.
    """
    task = glue_task(name)
    data = os.environ.get(DATA_VARIABLE)
    if task.columns is not None and data and Path(data, "glue", task.folder).is_dir():
        files = files_below(f"glue/{task.folder}", ("train.tsv", "dev.tsv"), name)
        return DatasetDict(
            [(split, _read(file, task)) for split, file in zip(("train", "validation"), files, strict=True)]
        )
    try:
        parts = load_named(HUB_NAME, name)
    except ValueError as error:
        if task.columns is None:
            raise
        place = f"glue/{task.folder} below the folder that {DATA_VARIABLE} names, {data or 'which is not set'}"
        raise ValueError(f"{error}; or put its train.tsv and dev.tsv into {place}") from error
    kept = {"train": "train", "validation": "validation_matched" if name == "mnli" else "validation"}
    return DatasetDict([(split, parts[part].select_columns([*task.texts, "label"])) for split, part in kept.items()])


def _read(file: Path, task: GlueTask) -> Dataset:
    assert task.columns is not None
    *places, place = task.columns
    known = task.classes or tuple(map(str, range(task.num_labels)))
    rows = []
    for number, line in enumerate(read_lines(file, newline="\n"), start=1):
        if not line.strip():
            continue
        cells = line.rstrip("\r\n").split("\t")
        if task.has_header and number == 1:
            if len(cells) > max(task.columns) and cells[place] in known:
                raise ValueError(
                    f"{file} must begin with a line of column names, and begins with an example: {line[:60]!r}; copy "
                    "or download it again"
                )
            continue
        if len(cells) <= max(task.columns):
            raise ValueError(
                f"line {number} of {file} must have at least {max(task.columns) + 1} columns with tabs between them, "
                f"got {len(cells)}: {line[:60]!r}; copy or download it again"
            )
        label = cells[place]
        if label not in known:
            raise ValueError(f"line {number} of {file} must have a label of {', '.join(known)}, got {label!r}")
        rows.append({**dict(zip(task.texts, (cells[i] for i in places), strict=True)), "label": known.index(label)})
    if not rows:
        raise ValueError(f"{file} has no example; copy or download it again")
    return Dataset.from_list(rows)
