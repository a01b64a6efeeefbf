"""Training arguments: Transformers' own, and the few that our targets add."""

from dataclasses import dataclass, field

import torch
from transformers import TrainingArguments

from hf_targets.maths.mixing import check_ensemble_weight


@dataclass
class TargetTrainingArguments(TrainingArguments):
    """Arguments that all of ours share."""

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False  # there is nothing to pin for, and torch warns about it
        super().__post_init__()


@dataclass
class MultiTokenTrainingArguments(TargetTrainingArguments):
    """Arguments of `MultiTokenTrainer`."""

    ensemble_weights: list[float] = field(
        default_factory=lambda: [0.0, 0.02, 0.04, 0.08, 0.2, 0.4],
        metadata={"help": "Lambdas whose perplexities every evaluation reports, from one pass over the data."},
    )
    head_warmup_steps: int | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps of a phase before the training, in which the heads learn and nothing else does; "
            "the training itself is as long as without. None: no such phase."
        },
    )
    head_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Learning rate of the heads, in their own phase and in the training, under its schedule; None: "
            "learning_rate."
        },
    )

    def __post_init__(self) -> None:
        for weight in self.ensemble_weights:
            check_ensemble_weight(weight)
        if not self.ensemble_weights:
            raise ValueError("ensemble_weights must name at least one weight; 0 is the next-word prediction alone")
        if self.head_warmup_steps is not None and self.head_warmup_steps < 1:
            raise ValueError(
                f"head_warmup_steps must be at least 1, got {self.head_warmup_steps}; leave it out, or give null in a "
                "settings file, for no phase of the heads alone"
            )
        if self.head_learning_rate is not None and self.head_learning_rate < 0:
            raise ValueError(f"head_learning_rate must be 0 or more, got {self.head_learning_rate}")
        super().__post_init__()


@dataclass
class DynamicVocabTrainingArguments(TargetTrainingArguments):
    """Arguments of `DynamicVocabTrainer`."""

    encoder_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the phrase encoder, under the same schedule; None: learning_rate."},
    )

    def __post_init__(self) -> None:
        if self.encoder_learning_rate is not None and self.encoder_learning_rate < 0:
            raise ValueError(f"encoder_learning_rate must be 0 or more, got {self.encoder_learning_rate}")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0 for a dynamic vocabulary, got {self.label_smoothing_factor}: the "
                "uniform distribution over a table that changes with each batch is no target"
            )
        super().__post_init__()


@dataclass
class DiffusionTrainingArguments(TargetTrainingArguments):
    """Arguments of `DiffusionTrainer`."""

    ema_decay: float | None = field(
        default=0.9999,
        metadata={
            "help": "Decay of the average of the weights that is evaluated, saved and left in the model, in [0, 1); "
            "None: no average."
        },
    )
    evaluation_draws: int = field(
        default=1, metadata={"help": "How many times an evaluation masks each row; 2 or more tell its error as well."}
    )
    test_draws: int = field(
        default=8,
        metadata={
            "help": "The same for the evaluation of the test split, whose figure is reported: the 95% interval is 2.4 "
            "standard errors to either side with 8 draws, 12.7 with 2."
        },
    )
    evaluation_seed: int = field(
        default=0, metadata={"help": "Of the times and masks of evaluations, the same in each of them."}
    )

    def __post_init__(self) -> None:
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be in [0, 1), got {self.ema_decay}; None switches the average off")
        for name in ("evaluation_draws", "test_draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.evaluation_seed < 0:
            raise ValueError(f"evaluation_seed must be 0 or more, got {self.evaluation_seed}")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0 for a diffusion model, got {self.label_smoothing_factor}: the loss "
                "of smoothed labels is no bound on the likelihood of the text"
            )
        super().__post_init__()
