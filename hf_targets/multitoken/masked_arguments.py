"""Training arguments of masked models, with heads or without."""

from dataclasses import dataclass, field

from hf_targets.multitoken.arguments import MultiTokenTrainingArguments
from hf_targets.multitoken.masking import check_share


@dataclass
class MultiTokenMaskedTrainingArguments(MultiTokenTrainingArguments):
    """Arguments of `MultiTokenMaskedTrainer`."""

    mask_share: float = field(
        default=0.15, metadata={"help": "Share of the tokens that are masked and predicted, in (0, 1]."}
    )
    ensemble_weights: list[float] = field(
        default_factory=lambda: [0.0], metadata={"help": "Must be 0 alone: a masked model has no ensemble."}
    )

    def __post_init__(self) -> None:
        check_share(self.mask_share)
        if self.ensemble_weights != [0.0]:
            raise ValueError(
                f"ensemble_weights must be [0.0], got {self.ensemble_weights}: a masked model has no ensemble"
            )
        if self.head_warmup_steps is not None:
            raise ValueError(
                f"head_warmup_steps must be None for masked models, got {self.head_warmup_steps}; to train the heads "
                "first, freeze the backbone with model.backbone.requires_grad_(False) in a training of its own"
            )
        super().__post_init__()
