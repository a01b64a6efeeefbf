"""Training arguments of Gaussian diffusion models."""

from dataclasses import dataclass, field

from hf_targets.training.arguments import AveragedTrainingArguments, TokenBatchArguments


@dataclass
class GaussianDiffusionTrainingArguments(TokenBatchArguments, AveragedTrainingArguments):
    """Arguments of `GaussianDiffusionTrainer`."""

    evaluation_seed: int = field(
        default=0, metadata={"help": "Seed of times and noise in evaluations, 0 or more; all evaluations use the same."}
    )
    clip_lengths: bool = field(
        default=False,
        metadata={
            "help": "Train on pairs whose lengths differ by more than the model's length classes tell apart, too: they "
            "are counted in a log line, and are in the outermost class. Otherwise they are an error."
        },
    )

    def __post_init__(self) -> None:
        if self.evaluation_seed < 0:
            raise ValueError(f"evaluation_seed must be 0 or more, got {self.evaluation_seed}")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0, got {self.label_smoothing_factor}: only the words' part of this "
                "model's loss has smoothed labels; set label_smoothing in its configuration"
            )
        super().__post_init__()
