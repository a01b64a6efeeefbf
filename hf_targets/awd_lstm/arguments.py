"""Training arguments of AWD-LSTM language models; the defaults are the published ones."""

from dataclasses import dataclass, field

from transformers import TrainingArguments

from hf_targets.training.arguments import TargetTrainingArguments
from hf_targets.training.recipe_settings import field_of


@dataclass
class AwdLstmTrainingArguments(TargetTrainingArguments):
    """Arguments of `AwdLstmTrainer`."""

    bptt: int = field(
        default=70,
        metadata={
            "help": "Mean tokens of a training segment, through which gradients flow; the learning rate of a step is "
            "multiplied by the segment's tokens / bptt."
        },
    )
    nonmonotone_interval: int | None = field(
        default=5,
        metadata={
            "help": "n: the mean of the weights begins once an evaluation is worse than the best of those that are "
            "more than n evaluations old. None: no mean."
        },
    )
    average_from_start: bool = field(
        default=False,
        metadata={
            "help": "Finetuning of a trained model: the mean of the weights begins with the first step, and training "
            "stops once evaluations no longer get better."
        },
    )
    eval_streams: int = field(
        default=10,
        metadata={"help": "Rows in which an evaluation reads its text side by side, on all devices together."},
    )
    optim: str = field_of(TrainingArguments, "optim", "sgd")
    learning_rate: float = field_of(TrainingArguments, "learning_rate", 30.0)
    lr_scheduler_type: str = field_of(TrainingArguments, "lr_scheduler_type", "constant")
    max_grad_norm: float = field_of(TrainingArguments, "max_grad_norm", 0.25)
    weight_decay: float = field_of(TrainingArguments, "weight_decay", 1.2e-6)

    def __post_init__(self) -> None:
        for name in ("bptt", "eval_streams"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer, 1 or more, got {value!r}")
        if self.nonmonotone_interval is not None and self.nonmonotone_interval < 1:
            raise ValueError(
                f"nonmonotone_interval must be 1 or more, got {self.nonmonotone_interval}; None keeps no mean"
            )
        if self.average_from_start and self.nonmonotone_interval is None:
            raise ValueError("average_from_start needs a nonmonotone_interval, after which training stops; give one")
        super().__post_init__()
