"""The one table of Trainers that owe what every Trainer of a target owes; a new one adds a line to `TRAINERS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import Trainer, TrainingArguments, default_data_collator

from hf_targets import (
    AwdLstmTrainer,
    AwdLstmTrainingArguments,
    DiffusionTrainer,
    DiffusionTrainingArguments,
    DynamicVocabTrainer,
    DynamicVocabTrainingArguments,
    GaussianDiffusionTrainer,
    GaussianDiffusionTrainingArguments,
    MultiTokenMaskedTrainer,
    MultiTokenMaskedTrainingArguments,
    MultiTokenSeq2SeqTrainer,
    MultiTokenSeq2SeqTrainingArguments,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    SemiAutoregressiveTrainer,
    TargetTrainingArguments,
    TokenNgrams,
)
from hf_targets.maths.losses import IGNORED
from tests.awd_lstm.training import text_blocks
from tests.gaussian_diffusion.models import make_difformer, noisy_rows
from tests.masked_diffusion import training as diffusion_training
from tests.model_case import TrainedModel, remembered
from tests.model_cases import CASES
from tests.tiny_backbones import token_ids
from tests.tiny_masked import MASK
from tests.tiny_models import make_collator
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


def _phrase_collator() -> Any:
    collator = make_collator()
    collator.miner = TokenNgrams(3, 3)
    return collator


def _masked_rows(num_rows: int) -> Dataset:
    """Return rows that are masked already; padding has no label, which the Trainer of Transformers would count."""

    def unlabelled(row: dict[str, list]) -> dict[str, list]:
        pairs = zip(row["labels"], row["attention_mask"], strict=True)
        return {"labels": [label if kept else IGNORED for label, kept in pairs]}

    return diffusion_training.masked_blocks(num_rows).map(unlabelled)


def _rows_with_following_tokens(num_rows: int) -> Dataset:
    """Return padded rows in which about every third word is masked; others have no label."""

    def masked(row: dict[str, list], index: int) -> dict[str, list]:
        chosen = [kept and (place + index) % 3 == 1 for place, kept in enumerate(row["attention_mask"])]
        pairs = list(zip(row["input_ids"], chosen, strict=True))
        return {
            "input_ids": [MASK if hidden else id_ for id_, hidden in pairs],
            "labels": [id_ if hidden else IGNORED for id_, hidden in pairs],
        }

    return padded_rows(num_rows).map(masked, with_indices=True)


_MULTITOKEN = TrainerCase(
    model=CASES["difference-gpt2"],
    trainer=MultiTokenTrainer,
    arguments=MultiTokenTrainingArguments,
    rows=padded_rows,
    evaluated=padded_rows,
    metrics=("perplexity_0", "perplexity_0.3", "word_perplexity_0.3"),
    options={"ensemble_weights": [0.0, 0.3]},
    weights={"loss_weight": 0.6},
    new_part_rate="head_learning_rate",
)
TRAINERS = {
    "multitoken": _MULTITOKEN,
    "translation": replace(
        _MULTITOKEN,
        model=CASES["difference-marian"],
        trainer=MultiTokenSeq2SeqTrainer,
        arguments=MultiTokenSeq2SeqTrainingArguments,
    ),
    "masked": TrainerCase(
        model=CASES["masked-difference-bert"],
        trainer=MultiTokenMaskedTrainer,
        arguments=MultiTokenMaskedTrainingArguments,
        rows=_rows_with_following_tokens,
        evaluated=_rows_with_following_tokens,
        metrics=("perplexity",),
        weights={"loss_weight": 0.6},
        new_part_rate="head_learning_rate",
        lacks={"labels": "it masks words itself where there are none"},
    ),
    "phrases": TrainerCase(
        model=CASES["phrases-gpt2"],
        trainer=DynamicVocabTrainer,
        arguments=DynamicVocabTrainingArguments,
        rows=padded_rows,
        evaluated=padded_rows,
        metrics=("perplexity", "best_path_perplexity"),
        collator=_phrase_collator,
        weights={"kl_loss_weight": 0.5, "token_loss_weight": 2.0},
        new_part_rate="encoder_learning_rate",
    ),
    "semi_autoregressive": TrainerCase(
        model=CASES["blocks-words"],
        trainer=SemiAutoregressiveTrainer,
        arguments=TargetTrainingArguments,
        rows=padded_rows,
        evaluated=padded_rows,
        metrics=("perplexity", "perplexity_3", "word_perplexity"),
    ),
    "masked_diffusion": TrainerCase(
        model=CASES["mdlm-curves"],
        trainer=DiffusionTrainer,
        arguments=DiffusionTrainingArguments,
        rows=_masked_rows,
        evaluated=diffusion_training.blocks,
        metrics=("loss", "perplexity", "nelbo_standard_error"),
        options={"ema_decay": 0.5, "evaluation_draws": 2},
        drawn="timesteps",
    ),
    "gaussian_diffusion": TrainerCase(
        model=TrainedModel(
            make=remembered(lambda: make_difformer(self_conditioning="both")),  # "half" leaves it to chance
            part_weights=lambda model: {"diffusion": 1.0, "words": 1.0, "length": model.config.length_loss_weight},
            refuses={"shift_labels": "reads input_ids and labels, and no shift_labels"},
        ),
        trainer=GaussianDiffusionTrainer,
        arguments=GaussianDiffusionTrainingArguments,
        rows=noisy_rows,
        evaluated=noisy_rows,
        metrics=("loss", "diffusion", "words", "length", "perplexity"),
        options={"ema_decay": 0.5},
        weights={"length_loss_weight": 0.3},
    ),
    "awd_lstm": TrainerCase(
        model=CASES["lstm-tied"],
        trainer=AwdLstmTrainer,
        arguments=AwdLstmTrainingArguments,
        rows=text_blocks,
        evaluated=text_blocks,
        metrics=("loss", "perplexity", "word_perplexity"),
        options={"bptt": 8, "optim": "adamw_torch"},
        weights={"activation_weight": 0.5, "temporal_weight": 3.0},
        lacks={
            "the steps of the plain trainer": "its state goes on from batch to batch",
            "lower parts": "the parts beside the cross-entropy grow with what the model has to say",
        },
    ),
}
TRAINERS = {  # as long as no test changes its rows, all have the same
    name: replace(case, rows=cache(case.rows), evaluated=cache(case.evaluated)) for name, case in TRAINERS.items()
}
every_trainer = pytest.mark.parametrize("case", TRAINERS.values(), ids=TRAINERS)


def trainers_that(owe: Callable[[TrainerCase], Any]):
    """Parametrize over the trainers whose case says so."""
    chosen = {name: case for name, case in TRAINERS.items() if owe(case)}
    return pytest.mark.parametrize("case", chosen.values(), ids=chosen)


def trainers_that_owe(law: str):
    """Parametrize over the trainers that do not lack a law."""
    assert any(law in case.lacks for case in TRAINERS.values()), f"no trainer lacks {law}; take every_trainer"
    return trainers_that(lambda case: law not in case.lacks)
