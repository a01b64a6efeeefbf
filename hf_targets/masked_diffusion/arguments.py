"""Training arguments of masked diffusion models."""

from dataclasses import dataclass, field

from hf_targets.training.arguments import AveragedTrainingArguments


@dataclass
class DiffusionTrainingArguments(AveragedTrainingArguments):
    """Arguments of `DiffusionTrainer`."""

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
