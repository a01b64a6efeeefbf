"""Training arguments: Transformers' own; each target adds its few in a class of its own."""

import copy
from dataclasses import dataclass, field
from typing import Self

import torch
from transformers import TrainingArguments

from hf_targets.backbones.configuration import check_ranges
from hf_targets.maths.cosine_regularization import check_cosine_weight


@dataclass
class TargetTrainingArguments(TrainingArguments):
    """Arguments that all of ours share.

    With `load_best_model_at_end` the best checkpoint is the one of the lowest validation perplexity, or loss where
    evaluations generate, unless `metric_for_best_model` says otherwise. A resumed training goes on with
    the states of its callbacks.
    """

    restore_callback_states_from_checkpoint: bool = field(
        default=True, metadata={"help": "Whether a resumed training goes on with the states of its callbacks."}
    )
    cosine_weight: float = field(
        default=0.0,
        metadata={
            "help": "Gamma: factor of the mean cosine of all pairs of output embeddings in the loss, which keeps them "
            "apart; 1 in the paper of cosine regularisation."
        },
    )
    max_row_length: int | None = field(
        default=None,
        metadata={
            "help": "The most tokens of a row that is made of messages, or of a prompt and its completion; what comes "
            "after is cut off. None: as many as the model has positions."
        },
    )

    shuffle_buffer_size: int | None = field(
        default=None,
        metadata={
            "help": "Rows of a stream that are read at a time to be put in random order, another one in each pass; of "
            "each process and data loader worker. None: the stream's own order."
        },
    )

    def __post_init__(self) -> None:
        check_ranges(self, {"max_row_length": 2, "shuffle_buffer_size": 1})
        check_cosine_weight(self.cosine_weight)
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False  # there is nothing to pin for, and torch warns about it
        generates = getattr(self, "predict_with_generate", False)
        if self.load_best_model_at_end and self.metric_for_best_model is None and not generates:
            self.metric_for_best_model, self.greater_is_better = "perplexity", False
        super().__post_init__()

    def for_baseline(self) -> Self:
        """Return a copy for a model without what the target adds: what asks for the new part is left out."""
        return copy.deepcopy(self)


@dataclass
class TokenBatchArguments(TargetTrainingArguments):
    """Arguments of a Trainer of pairs of texts."""

    tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of a batch of one process, padding included, on the longer side of its pairs, which "
            "are of similar length. None: batches of per_device_train_batch_size pairs."
        },
    )

    def __post_init__(self) -> None:
        check_ranges(self, {"tokens_per_batch": 1})
        super().__post_init__()


@dataclass
class AveragedTrainingArguments(TargetTrainingArguments):
    """Arguments of an `AveragedTrainer`."""

    ema_decay: float | None = field(
        default=0.9999,
        metadata={
            "help": "Decay of the average of the weights that is evaluated, saved and left in the model, in [0, 1); "
            "None: no average."
        },
    )

    def __post_init__(self) -> None:
        check_ranges(self, {}, ["ema_decay"])
        super().__post_init__()
