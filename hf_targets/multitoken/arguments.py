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
            raise ValueError("ensemble_weights must name at least one weight; 0 is the next-token prediction alone")
        if self.head_warmup_steps is not None and self.head_warmup_steps < 1:
            raise ValueError(
                f"head_warmup_steps must be at least 1, got {self.head_warmup_steps}; leave it out, or give null in a "
                "settings file, for no phase of the heads alone"
            )
        if self.head_learning_rate is not None and self.head_learning_rate < 0:
            raise ValueError(f"head_learning_rate must be 0 or more, got {self.head_learning_rate}")
        super().__post_init__()

    def for_baseline(self) -> Self:
        """Return a copy for a model without heads: what asks for them is left out."""
        args = super().for_baseline()
        args.head_warmup_steps, args.head_learning_rate = None, None
        return args
