"""Training arguments of masked diffusion models."""

from dataclasses import dataclass, field

from hf_targets.training.arguments import AveragedTrainingArguments


@dataclass
class DiffusionTrainingArguments(AveragedTrainingArguments):
    """Arguments of `DiffusionTrainer`."""

    evaluation_draws: int = field(
        default=1, metadata={"help": "How often an evaluation masks each row; 2 or more also give the standard error."}
    )
    test_draws: int = field(
        default=8,
        metadata={
            "help": "How often the evaluation of the test split masks each row. Its result is the one to report: the "
            "95% interval is 2.4 standard errors to either side with 8 draws, 12.7 with 2."
        },
    )
    evaluation_seed: int = field(
        default=0, metadata={"help": "Seed of the times and masks in evaluations; all evaluations use the same."}
    )

    def __post_init__(self) -> None:
        for name, least in (("evaluation_draws", 1), ("test_draws", 1), ("evaluation_seed", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be an integer, {least} or more, got {value!r}")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0 for a diffusion model, got {self.label_smoothing_factor}: with "
                "smoothed labels the loss is no bound on the likelihood of the text; leave it out"
            )
        super().__post_init__()
