"""Training arguments of models with a dynamic vocabulary."""

from dataclasses import dataclass, field
from typing import Self

from hf_targets.training.arguments import TargetTrainingArguments


@dataclass
class DynamicVocabTrainingArguments(TargetTrainingArguments):
    """Arguments of `DynamicVocabTrainer`."""

    encoder_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the phrase encoder, with the same schedule; None: learning_rate."},
    )

    def __post_init__(self) -> None:
        if self.encoder_learning_rate is not None and self.encoder_learning_rate < 0:
            raise ValueError(f"encoder_learning_rate must be 0 or more, got {self.encoder_learning_rate}")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0 for a dynamic vocabulary, got {self.label_smoothing_factor}; leave "
                "it out, since the vocabulary over which it would smooth changes with each batch"
            )
        super().__post_init__()

    def for_baseline(self) -> Self:
        """Return a copy for a model without a phrase encoder, without the encoder's learning rate."""
        args = super().for_baseline()
        args.encoder_learning_rate = None
        return args
