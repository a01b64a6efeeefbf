"""Fine-tuning of a pre-trained model on a task of GLUE, and the scores that the benchmark reports."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
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
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import logging

from hf_targets.data.glue import GlueTask, glue_task, load_glue
from hf_targets.data.hub_data import without_progress_bars
from hf_targets.extras import require
from hf_targets.positions import max_positions
from hf_targets.training.brief_log import log_briefly, without_bars_of_files
from hf_targets.training.settings import parse_mapping


def _sklearn(name: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(getattr(require("sklearn.metrics", extra="eval"), name)(labels, predicted))


def _correlation(name: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(getattr(require("scipy.stats", extra="eval"), name)(labels, predicted).statistic)


SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": partial(_sklearn, "accuracy_score"),
    "f1": partial(_sklearn, "f1_score"),
    "matthews": partial(_sklearn, "matthews_corrcoef"),
    "pearson": partial(_correlation, "pearsonr"),
    "spearman": partial(_correlation, "spearmanr"),
}
"""Functions of labels and predictions: those that the metric `glue` of the library `evaluate` calls.

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


def fine_tune_on_glue(
    model_name_or_path: str,
    name: str,
    args: TrainingArguments,
    *,
    seed: int,
    max_length: int = 128,
    max_train_examples: int | None = None,
) -> dict[str, float]:
    """Fine-tune a model on a task, and return its scores on the validation split after the last update.

    No checkpoint is chosen by these scores, and none is written.

    Args:
        model_name_or_path: A name or folder with a tokenizer, which `AutoModelForSequenceClassification` loads: the
            layers of its classifier are new.
        name: Of the task, as in `GLUE_TASKS`.
        args: Of the training; its seed is `seed`, and it neither saves nor evaluates on the way.
        seed: Of the classifier's first weights, the order of the examples, and dropout.
        max_length: Tokens of an example, special ones included; the longer of its texts is cut.
        max_train_examples: Keep the first so many examples of the training split; None keeps all.
    Returns: `glue_scores`, and `loss`, the mean cross-entropy of the validation split.
    Raises:
        ValueError: If there is no such task, a number is out of range, the model has fewer positions than
            `max_length`, or the tokenizer has no padding token.
    """
    task = glue_task(name)
    if max_length < 8:
        raise ValueError(f"max_length must be 8 or more, room for words between special tokens, got {max_length}")
    if max_train_examples is not None and max_train_examples < 1:
        raise ValueError(f"max_train_examples must be 1 or more, got {max_train_examples}; None keeps all")
    tokenizer = AutoTokenizer.from_pretrained(model_name_or_path)
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {model_name_or_path} has no padding token, and batches need one; set one")
    data = load_glue(name)
    if max_train_examples is not None:
        data["train"] = data["train"].select(range(min(max_train_examples, len(data["train"]))))
    rows = {str(split): _encoded(part, task, tokenizer, max_length) for split, part in data.items()}
    args = copy.deepcopy(args)
    args.seed, args.eval_strategy, args.save_strategy = seed, IntervalStrategy.NO, SaveStrategy.NO
    set_seed(seed)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # a table of the classifier's new weights for each task
    try:
        with without_bars_of_files():
            model = AutoModelForSequenceClassification.from_pretrained(
                model_name_or_path, num_labels=task.num_labels, pad_token_id=tokenizer.pad_token_id
            )
    finally:
        logging.set_verbosity(verbosity)
    positions = max_positions(model.config)
    if positions is not None and positions < max_length:
        raise ValueError(f"max_length must be at most the model's {positions} positions, got {max_length}; lower it")
    trainer = Trainer(
        model,
        args,
        train_dataset=rows["train"],  # pyright: ignore[reportArgumentType]
        eval_dataset=rows["validation"],  # pyright: ignore[reportArgumentType]
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=partial(_scores, task),
    )
    log_briefly(trainer)
    trainer.train()
    found = trainer.evaluate()
    return {key: found[f"eval_{key}"] for key in (*task.metrics, "score", "loss")}


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
