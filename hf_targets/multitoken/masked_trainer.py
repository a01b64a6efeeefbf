"""Training and evaluation of masked models with heads, or of plain masked models as their baseline."""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.inputs import without_padding
from hf_targets.multitoken.masking import MaskingCollator, check_masked, check_share
from hf_targets.multitoken.trainer import MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.training.token_batches import EpochCallback
from hf_targets.training.trainer import TargetTrainer

EVALUATION_SEED = 0
"""Of the tokens that evaluations mask: the same for all models and seeds."""


@dataclass
class MultiTokenMaskedTrainingArguments(MultiTokenTrainingArguments):
    """Arguments of `MultiTokenMaskedTrainer`."""

    mask_share: float = field(
        default=0.15, metadata={"help": "Share of the tokens that are masked and predicted, in (0, 1]."}
    )
    exact_mask_counts: bool = field(
        default=False,
        metadata={
            "help": "Mask round(mask_share length) tokens of each row, special ones too, as CrammedBERT does; not in "
            "evaluations, whose figures then compare."
        },
    )
    ensemble_weights: list[float] = field(
        default_factory=lambda: [0.0], metadata={"help": "Must be 0 alone: a masked model has no ensemble."}
    )
    temperatures: list[float] = field(
        default_factory=list, metadata={"help": "As for causal models; none, as there is no ensemble to compare with."}
    )

    def __post_init__(self) -> None:
        check_share(self.mask_share)
        if self.ensemble_weights != [0.0]:
            raise ValueError(f"ensemble_weights must be [0.0] for masked models, got {self.ensemble_weights}")
        if self.head_warmup_steps:
            raise ValueError(
                f"head_warmup_steps must be 0 for masked models, got {self.head_warmup_steps}; to train the heads "
                "first, freeze the backbone with model.backbone.requires_grad_(False)"
            )
        super().__post_init__()


class MultiTokenMaskedTrainer(MultiTokenTrainer):
    """Trainer of `MultiTokenForMaskedLM`, plain or under peft, and of a plain masked model as its baseline.

    As `MultiTokenTrainer` it logs each part of the loss, smooths labels, and may give the heads a learning rate of
    their own. And:
    - In each epoch other tokens are masked (`MaskingCollator`), `mask_share` of them.
    - Evaluations mask the same tokens for every model and seed, and report `perplexity`: exp of the mean negative
      log-likelihood of masked tokens. It depends on `mask_share`.

    Data sets have `input_ids`. With a column `labels` tokens are masked already. With a collator of your own, which
    masks them itself, so do evaluations.

    Raises:
        ValueError: If there is neither a tokenizer nor a collator; if all labels of a data set stand in its
            `input_ids`, too; or as `MultiTokenTrainer` does.
    """

    args: MultiTokenMaskedTrainingArguments
    warms_up = reads_conversations = shifts_labels = False
    needed_columns = ("input_ids",)
    made_by = "hf_targets.enclosed_blocks makes them"

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: MultiTokenMaskedTrainingArguments | None = None,
        *,
        data_collator: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, MultiTokenMaskedTrainingArguments):
            raise ValueError(f"args must be MultiTokenMaskedTrainingArguments, got {type(args).__name__}")
        if data_collator is None:
            if processing_class is None:
                raise ValueError("tokens are masked by the tokenizer's mask token; give processing_class=tokenizer")
            seed = args.seed if args.data_seed is None else args.data_seed
            data_collator = MaskingCollator(processing_class, args.mask_share, seed=seed, exact=args.exact_mask_counts)
        super().__init__(model, args, data_collator=data_collator, processing_class=processing_class, **kwargs)
        if isinstance(data_collator, MaskingCollator):
            self.add_callback(EpochCallback(data_collator))

    def _check_dataset(self, dataset: Any, name: str) -> None:
        if isinstance(dataset, Dataset) and {"input_ids", "labels"} <= set(dataset.column_names):
            check_masked(dataset, name)
        super()._check_dataset(dataset, name)

    def _targets(self, labels: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        return without_padding(labels, attention_mask)

    @property
    def evaluation_collator(self) -> Any:
        """The collator that masks the same tokens in each evaluation; one that was given, but ours, as it is."""
        ours = self.data_collator
        if not isinstance(ours, MaskingCollator) or type(ours) is not MaskingCollator:
            return ours
        return MaskingCollator(ours.tokenizer, ours.share, seed=EVALUATION_SEED)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Return the loader of data to predict, masked as for an evaluation."""
        self._check_dataset(test_dataset, "test")
        return super().get_test_dataloader(test_dataset)

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, each row's negative log-likelihood of masked tokens (rows, 1), and how many there are."""
        return TargetTrainer.row_losses(self, model, inputs)

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the perplexity of masked tokens."""
        return TargetTrainer.metrics(self, losses, num_tokens, num_words)
