"""Fine-tuning of a pre-trained model on a task of GLUE, and the scores that the benchmark reports."""

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import logging

from hf_targets.backbones.checkpoint import listed
from hf_targets.data.corpora import without_progress_bars
from hf_targets.data.glue import GlueTask, glue_task, load_glue
from hf_targets.evaluation.glue_models import check_glue_model
from hf_targets.extras import require
from hf_targets.training.brief_log import log_briefly, without_bars_of_files
from hf_targets.training.settings import parse_mapping


def _sklearn(name: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(getattr(require("sklearn.metrics", extra="eval"), name)(labels, predicted))


def _correlation(name: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    if np.isfinite(predicted).all() and (predicted == predicted[0]).all():
        return 0.0  # as the Matthews correlation of one class; that of one number is not defined
    return float(getattr(require("scipy.stats", extra="eval"), name)(labels, predicted).statistic)


SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": partial(_sklearn, "accuracy_score"),
    "f1": partial(_sklearn, "f1_score"),
    "matthews": partial(_sklearn, "matthews_corrcoef"),
    "pearson": partial(_correlation, "pearsonr"),
    "spearman": partial(_correlation, "spearmanr"),
}
"""Functions of labels and predictions, which give what the metric `glue` of the library `evaluate` does.

That library downloads a script for it; this needs no network.
"""


def glue_scores(task: GlueTask, labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Return the scores of a task, in percent, and as `score` their mean, which is GLUE's score of the task.

    Args:
        labels: (examples,).
        logits: (examples, num_labels).
    """
    predicted = logits[:, 0] if task.num_labels == 1 else logits.argmax(axis=-1)
    scores = {name: 100 * SCORES[name](labels, predicted) for name in task.metrics}
    return {**scores, "score": sum(scores.values()) / len(scores)}


def pretrained_of(models: str, seeds: Sequence[int]) -> dict[str, dict[int, str]]:
    """Return the name or folder of each row's pre-trained model by seed, from a JSON object.

    Args:
        models: Names of rows, and names or folders, in which `{seed}` stands for a seed.
    Raises:
        ValueError: If it is no such object, names no model, or a folder with `{seed}` is missing for a seed.

    >>> pretrained_of('{"bert": "bert-base-uncased"}', [0, 1])
    {'bert': {0: 'bert-base-uncased', 1: 'bert-base-uncased'}}
    """
    rows = parse_mapping(models, "models")
    if not rows:
        raise ValueError('models must name a model, such as {"bert": "bert-base-uncased"}, got none')
    found: dict[str, dict[int, str]] = {}
    for name, place in rows.items():
        if not isinstance(place, str) or not place:
            raise ValueError(f"model {name} must be a name on the Hub or a folder, got {place!r}")
        found[name] = {seed: place.replace("{seed}", str(seed)) for seed in seeds}
        missing = [folder for folder in found[name].values() if "{seed}" in place and not Path(folder).is_dir()]
        if missing:
            raise ValueError(f"model {name} has no folder {missing[0]}; pre-train it, or leave its seed out of seeds")
    return found


def read_glue_results(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of results, [] if there is none.

    Raises:
        ValueError: If it is no such file.
    """
    if not file.is_file():
        return []
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        if all(isinstance(row["score"], float) and {"name", "seed", "task"} <= row.keys() for row in rows):
            return rows
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{file} is not whole, or no file of results; remove it to fine-tune all models again")


def glue_table(
    results: Sequence[Mapping[str, Any]], names: Sequence[str], seeds: Sequence[int], tasks: Sequence[str]
) -> dict[str, list[dict[str, float]]]:
    """Return for each model, by name, the score of each task and their average, for each seed.

    Args:
        results: A mapping with `name`, `seed`, `task` and `score` for each fine-tuned model.

    >>> scores = {"rte": 50, "sst2": 90}
    >>> results = [{"name": "a", "seed": 0, "task": task, "score": score} for task, score in scores.items()]
    >>> glue_table(results, ["a"], [0], ["rte", "sst2"])
    {'a': [{'rte': 50, 'sst2': 90, 'average': 70.0}]}
    """
    scores = {(row["name"], row["seed"], row["task"]): row["score"] for row in results}
    table: dict[str, list[dict[str, float]]] = {}
    for name in names:
        of_seeds = [{task: scores[name, seed, task] for task in tasks} for seed in seeds]
        table[name] = [{**one, "average": sum(one.values()) / len(one)} for one in of_seeds]
    return table


@dataclass(frozen=True)
class GlueRun:
    """A model to be fine-tuned on a task: all that can be checked before a training is checked when this is made.

    Args:
        model_name_or_path: A name or folder with a tokenizer, which `AutoModelForSequenceClassification` loads: the
            layers of its classifier are new.
        task: Of `GLUE_TASKS`, by its name.
        max_length: Tokens of an example, special ones included; the longer of its texts is cut.
        max_train_examples: Keep the first so many examples of the training split; None keeps all.
        model_fields: Fields of the model's configuration to change, such as `classifier_pooling` or a dropout.
    Raises:
        ValueError: If there is no such task, its data is not found, a number is out of range, or the model or its
            tokenizer does not fit, as `check_glue_model` says.
    """

    model_name_or_path: str
    task: str
    max_length: int = 128
    max_train_examples: int | None = None
    model_fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = self.model_name_or_path
        if self.max_length < 8:
            raise ValueError(
                f"max_length must be 8 or more, room for words between special ones, got {self.max_length}"
            )
        if self.max_train_examples is not None and self.max_train_examples < 1:
            raise ValueError(f"max_train_examples must be 1 or more, got {self.max_train_examples}; None keeps all")
        for module in ("sklearn.metrics", "scipy.stats"):  # the scores come after the training
            require(module, extra="eval")
        load_glue(self.task)
        check_glue_model(name, glue_task(self.task), self.max_length, self.model_fields)

    def fine_tune(self, args: TrainingArguments, seed: int) -> dict[str, float]:
        """Fine-tune the model, and return its scores on the validation split after the last update.

        No checkpoint is chosen by these scores, and none is written.

        Args:
            args: Of the training; its seed is `seed`, and it neither saves nor evaluates on the way.
            seed: Of the classifier's first weights, the order of the examples, and dropout.
        Returns: `glue_scores`, and `loss`, the mean loss of the validation split.
        Raises:
            ValueError: If a tensor below the classifier is missing, or the training diverged.
        """
        task, data = glue_task(self.task), load_glue(self.task)
        tokenizer = AutoTokenizer.from_pretrained(self.model_name_or_path)
        if self.max_train_examples is not None:
            data["train"] = data["train"].select(range(min(self.max_train_examples, len(data["train"]))))
        rows = {str(split): _encoded(part, task, tokenizer, self.max_length) for split, part in data.items()}
        args = copy.deepcopy(args)
        args.dataloader_pin_memory &= torch.accelerator.is_available()  # else torch warns
        args.seed, args.eval_strategy, args.save_strategy = seed, IntervalStrategy.NO, SaveStrategy.NO
        set_seed(seed)
        trainer = Trainer(
            self._model(task, tokenizer),
            args,
            train_dataset=rows["train"],  # pyright: ignore[reportArgumentType]
            eval_dataset=rows["validation"],  # pyright: ignore[reportArgumentType]
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=partial(_scores, task),
        )
        log_briefly(trainer)
        trainer.train()
        found = trainer.evaluate()
        scores = {key: found[f"eval_{key}"] for key in (*task.metrics, "score", "loss")}
        if not all(map(math.isfinite, scores.values())):
            raise ValueError(
                f"fine-tuning {self.model_name_or_path} on {self.task} with seed {seed} diverged ({scores}); lower "
                "learning_rate"
            )
        return scores

    def _model(self, task: GlueTask, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """Return the model with a new classifier."""
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # a table of the classifier's new weights for each task
        try:
            with without_bars_of_files():
                model, info = AutoModelForSequenceClassification.from_pretrained(
                    self.model_name_or_path,
                    num_labels=task.num_labels,
                    pad_token_id=tokenizer.pad_token_id,
                    output_loading_info=True,
                    **self.model_fields,
                )
        finally:
            logging.set_verbosity(verbosity)
        begin = f"{model.base_model_prefix}."
        pooler = f"{begin}pooler."  # BERT's masked model has none
        if lost := sorted(one for one in info["missing_keys"] if one.startswith(begin) and not one.startswith(pooler)):
            raise ValueError(
                f"{self.model_name_or_path} lacks tensors below the classifier: {listed(lost)}; copy or download it "
                "again"
            )
        return model


def _scores(task: GlueTask, prediction: EvalPrediction) -> dict[str, float]:
    logits: Any = prediction.predictions
    logits = logits[0] if isinstance(logits, tuple) else logits  # a model may return more than logits
    return glue_scores(task, np.asarray(prediction.label_ids), np.asarray(logits))


def _encoded(rows: Dataset, task: GlueTask, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Return rows as the model reads them, with their `labels`."""

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        first, second = batch[task.texts[0]], batch[task.texts[1]] if len(task.texts) == 2 else None
        read = tokenizer(first, second, truncation=True, max_length=max_length)
        return {**read, "labels": batch["label"]}

    with without_progress_bars():
        return rows.map(encode, batched=True, remove_columns=rows.column_names)
