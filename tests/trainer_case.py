"""What the laws of the contract need to know of a Trainer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer, TrainingArguments, default_data_collator

from hf_targets.maths.losses import IGNORED
from tests.model_case import TrainedModel
from tests.tiny_backbones import token_ids
from tests.trainer_runs import SHORT


@dataclass(frozen=True)
class TrainerCase:
    """A Trainer of ours with a tiny model, and what a law needs to know of it.

    Attributes:
        model: The model that it trains.
        trainer, arguments: Its class and that of its arguments.
        rows: Makes so many training rows, of different numbers of targets, that leave nothing to chance.
        evaluated: Makes so many rows to evaluate.
        collator: Makes what it makes batches with.
        options: Arguments beside those of every training.
        weights: Fields of the model's configuration that weigh the parts of its loss, other than by default.
        metrics: Names of its metrics.
        new_part_rate: The argument that is the learning rate of what the target adds; None: there is none.
        drawn: The output with random numbers that each process draws for itself from rows that leave it to chance.
        lacks: Laws that it does not owe, and why.
    """

    model: TrainedModel
    trainer: type[Trainer]
    arguments: type[TrainingArguments]
    rows: Callable[[int], Dataset]
    evaluated: Callable[[int], Dataset]
    metrics: tuple[str, ...]
    collator: Callable[[], Any] = lambda: default_data_collator
    options: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    new_part_rate: str | None = None
    drawn: str | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:  # as long as no test changes its rows, all have the same
        object.__setattr__(self, "rows", cache(self.rows))
        object.__setattr__(self, "evaluated", cache(self.evaluated))

    def make(
        self,
        folder: Path | str,
        model: Any = None,
        rows: Dataset | None = None,
        *,
        plain: bool = False,
        compute_metrics: Callable | None = None,
        **arguments: Any,
    ) -> Any:
        """Return a trainer; a plain one is that of Transformers."""
        trainer, kind = (Trainer, TrainingArguments) if plain else (self.trainer, self.arguments)
        own = {} if plain else self.options
        options = {**SHORT, "report_to": "none", "train_sampling_strategy": "sequential", **own, **arguments}
        given = {} if compute_metrics is None else {"compute_metrics": compute_metrics}
        return trainer(
            model=self.model.make() if model is None else model,
            args=kind(output_dir=str(folder), **options),
            train_dataset=self.rows(32) if rows is None else rows,
            eval_dataset=self.evaluated(7),
            data_collator=self.collator(),
            **given,
        )


def padded_rows(num_rows: int, length: int = 14) -> Dataset:
    """Return rows of few words, some padded at their end; in half of them, every second token is no target."""
    ids = (token_ids(num_rows, length) % 5 + 1).tolist()
    labels = [row[: length - number % 4] + [IGNORED] * (number % 4) for number, row in enumerate(ids)]
    mask = [[int(label != IGNORED) for label in row] for row in labels]
    for number, row in enumerate(labels):
        if number % 8 >= 4:  # so that no phrase is in the batch of one of two processes
            row[::2] = [IGNORED] * len(row[::2])
    return Dataset.from_dict({"input_ids": ids, "attention_mask": mask, "labels": labels, "num_words": [4] * num_rows})
