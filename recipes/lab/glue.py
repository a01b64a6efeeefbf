"""The tasks of the GLUE benchmark: their data, their scores, and fine-tuning of a pre-trained model on one of them."""

import copy
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from datasets import Dataset, DatasetDict
from scipy import stats
from sklearn import metrics
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_targets.data.corpora import DATA_VARIABLE, file_below, load_parts


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE.

    Attributes:
        texts: Columns of the data set on the Hub that hold its text, one or two.
        metric: Name of its score in `SCORES`, the one that the published program of CrammedBERT reports. GLUE itself
            has the mean of two for MRPC, QQP and STS-B.
        num_labels: Number of classes; 1 for a number from 0 to 5.
        columns: Of its files: those of `texts`, then that of the label, counted from 0; None: it is read from the Hub.
        classes: Names of classes in its files; none: numbers stand there.
    """

    folder: str
    texts: tuple[str, ...]
    metric: str
    num_labels: int = 2
    columns: tuple[int, ...] | None = None
    has_header: bool = True
    classes: tuple[str, ...] = ("0", "1")


_PAIR = ("sentence1", "sentence2")
GLUE_TASKS = {
    "cola": GlueTask("CoLA", ("sentence",), "matthews", columns=(3, 1), has_header=False),
    "sst2": GlueTask("SST-2", ("sentence",), "accuracy", columns=(0, 1)),
    "mrpc": GlueTask("MRPC", _PAIR, "f1", columns=(3, 4, 0)),
    "rte": GlueTask("RTE", _PAIR, "accuracy", 2, (1, 2, 3), True, ("entailment", "not_entailment")),
    "qnli": GlueTask("QNLI", ("question", "sentence"), "accuracy"),
    "qqp": GlueTask("QQP", ("question1", "question2"), "f1"),
    "mnli": GlueTask("MNLI", ("premise", "hypothesis"), "accuracy", num_labels=3),
    "stsb": GlueTask("STS-B", _PAIR, "pearson", num_labels=1),
    "wnli": GlueTask("WNLI", _PAIR, "accuracy"),
}
"""By their names on the Hub."""

MISMATCHED = "validation_mismatched"
"""A second validation split, of MNLI."""

SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": metrics.accuracy_score,
    "f1": metrics.f1_score,
    "matthews": metrics.matthews_corrcoef,
    "pearson": lambda labels, predicted: stats.pearsonr(labels, predicted).statistic,  # pyright: ignore
}
"""Functions of labels and predictions, which give what the metric `glue` of the library `evaluate` does, offline."""


def load_glue(name: str) -> DatasetDict:
    """Return the splits `train` and `validation` of a task (`mnli`: matched), with its columns of text and `label`.

    CoLA, SST-2, MRPC and RTE are read from train.tsv and dev.tsv (.gz, .xz) in glue/<task> below the folder that
    `HF_TARGETS_DATA` names, where it has such a folder; all others are from the Hub. GLUE keeps the labels of its test
    split to itself.
    """
    task, data = GLUE_TASKS[name], os.environ.get(DATA_VARIABLE)
    if task.columns is not None and data and Path(data, "glue", task.folder).is_dir():
        files = (("train", "train.tsv"), ("validation", "dev.tsv"))
        return DatasetDict({split: _read(file_below(f"glue/{task.folder}", file), task) for split, file in files})
    parts, ending = load_parts("nyu-mll/glue", name), "_matched" if name == "mnli" else ""
    kept = {"train": "train", "validation": f"validation{ending}"} | ({MISMATCHED: MISMATCHED} if ending else {})
    return DatasetDict({split: parts[part].select_columns([*task.texts, "label"]) for split, part in kept.items()})


def _read(file: Path | None, task: GlueTask) -> Dataset:
    assert task.columns is not None and file is not None
    *places, place = task.columns
    with fsspec.open(str(file), "rt", compression="infer", encoding="utf-8-sig", newline="\n") as lines:
        cells = [line.rstrip("\r\n").split("\t") for line in lines if line.strip()][task.has_header :]
    columns = {name: [row[at] for row in cells] for name, at in zip(task.texts, places, strict=True)}
    return Dataset.from_dict({**columns, "label": [task.classes.index(row[place]) for row in cells]})


def glue_score(task: GlueTask, labels: np.ndarray, logits: np.ndarray) -> float:
    """Return the score of a task, in percent, of labels (examples,) and logits (examples, num_labels)."""
    predicted = logits[:, 0] if task.num_labels == 1 else logits.argmax(axis=-1)
    return 100 * float(SCORES[task.metric](labels, predicted))


def fine_tune(
    model_name_or_path: str,
    task_name: str,
    args: TrainingArguments,
    *,
    max_length: int = 128,
    single_as_pair: bool = False,
    max_train_examples: int | None = None,
    model_fields: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Fine-tune a model on a task, and return its scores on the validation split after the last update.

    No checkpoint is chosen by these scores, and none is written.

    Args:
        args: Of the training; its seed sets the classifier's first weights too.
        single_as_pair: Whether one text alone is read as a pair with an empty second one, `[CLS] text [SEP] [SEP]`, as
            the published program of CrammedBERT does.
        model_fields: Fields of the model's configuration to change, such as `classifier_pooling` or a dropout.
    Returns: `score`, in percent; of MNLI also `mismatched_score`; and `loss`, the mean loss of the validation split.
    """
    task, data = GLUE_TASKS[task_name], load_glue(task_name)
    tokenizer = AutoTokenizer.from_pretrained(model_name_or_path)
    data["train"] = data["train"].select(range(len(data["train"]))[:max_train_examples])
    encode = partial(encoded_rows, tokenizer=tokenizer, max_length=max_length, single_as_pair=single_as_pair)
    rows = {str(split): encode(part, task) for split, part in data.items()}
    args = copy.deepcopy(args)
    args.eval_strategy = args.save_strategy = "no"  # pyright: ignore[reportAttributeAccessIssue]
    set_seed(args.seed)
    given = {"num_labels": task.num_labels, "pad_token_id": tokenizer.pad_token_id, **(model_fields or {})}
    trainer = Trainer(
        AutoModelForSequenceClassification.from_pretrained(model_name_or_path, **given),
        args,
        train_dataset=rows["train"],  # pyright: ignore[reportArgumentType]
        eval_dataset=rows["validation"],  # pyright: ignore[reportArgumentType]
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=partial(_scores, task),
    )
    trainer.train()
    found = trainer.evaluate()
    scores = {key: found[f"eval_{key}"] for key in ("score", "loss")}
    if MISMATCHED in rows:
        scores["mismatched_score"] = trainer.evaluate(rows[MISMATCHED])["eval_score"]  # pyright: ignore
    if not all(map(math.isfinite, scores.values())):
        raise ValueError(f"fine-tuning {model_name_or_path} on {task_name} diverged ({scores}); lower learning_rate")
    return scores


def encoded_rows(
    rows: Dataset, task: GlueTask, tokenizer: PreTrainedTokenizerBase, max_length: int, *, single_as_pair: bool = False
) -> Dataset:
    """Return rows as the model reads them, with their `labels`."""

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        first, *others = (batch[name] for name in task.texts)
        second = others[0] if others else [""] * len(first) if single_as_pair else None
        read = tokenizer(first, second, truncation=True, max_length=max_length)
        return {**read, "labels": batch["label"]}

    return rows.map(encode, batched=True, remove_columns=rows.column_names)


def _scores(task: GlueTask, prediction: EvalPrediction) -> dict[str, float]:
    logits: Any = prediction.predictions
    logits = logits[0] if isinstance(logits, tuple) else logits  # a model may return more than logits
    return {"score": glue_score(task, np.asarray(prediction.label_ids), np.asarray(logits))}
