"""Training arguments of models with future-token heads."""

from dataclasses import dataclass, field
from typing import Self

from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.training.arguments import TargetTrainingArguments


@dataclass
class MultiTokenTrainingArguments(TargetTrainingArguments):
    """Arguments of `MultiTokenTrainer`."""

    ensemble_weights: list[float] = field(
        default_factory=lambda: [0.0, 0.02, 0.04, 0.08, 0.2, 0.4],
        metadata={"help": "Lambdas for which each evaluation reports a perplexity, from one pass over the data."},
    )
    head_warmup_steps: int | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps of a phase before training, in which only the heads are trained; the training "
            "that follows is not shortened. None: no such phase."
        },
    )
    head_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Learning rate of the heads, in their own phase and in training, each with its schedule; None: "
            "learning_rate."
        },
    )

    gradient_diversity_steps: int | None = field(
        default=None,
        metadata={
            "help": "Log the gradient diversity of a step's rows (equation 14) each so many steps; it costs as much as "
            "a step or two. None: never."
        },
    )

    def __post_init__(self) -> None:
        if self.gradient_diversity_steps is not None and self.gradient_diversity_steps < 1:
            raise ValueError(
                f"gradient_diversity_steps must be at least 1, got {self.gradient_diversity_steps}; leave it out for "
                "never"
            )
        for weight in self.ensemble_weights:
            check_ensemble_weight(weight)
        if not self.ensemble_weights:
            raise ValueError("ensemble_weights must name at least one weight, got none; 0 means no ensemble")
        if self.head_warmup_steps is not None and self.head_warmup_steps < 1:
            raise ValueError(
                f"head_warmup_steps must be at least 1, got {self.head_warmup_steps}; to train without this phase, "
                "leave it out, or set it to null in a settings file"
            )
        if self.head_learning_rate is not None and self.head_learning_rate < 0:
            raise ValueError(f"head_learning_rate must be 0 or more, got {self.head_learning_rate}")
        super().__post_init__()

    def for_baseline(self) -> Self:
        """Return a copy for a model without heads, in which the arguments about heads are None."""
        args = super().for_baseline()
        args.head_warmup_steps, args.head_learning_rate = None, None
        return args
