"""Training and evaluation of masked models with heads, or of plain masked models as their baseline."""

from typing import Any

from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.multitoken.masked_arguments import MultiTokenMaskedTrainingArguments
from hf_targets.multitoken.masking import MaskingCollator, check_masked, mask_rows
from hf_targets.multitoken.trainer import MultiTokenTrainer
from hf_targets.training.epochs import EpochCallback
from hf_targets.training.trainer import TargetTrainer

EVALUATION_SEED = 0
"""Of the words that evaluations mask: the same for all models and seeds."""


class MultiTokenMaskedTrainer(MultiTokenTrainer):
    """Trainer of `MultiTokenForMaskedLM`, plain or under peft, and of a plain masked model as its baseline.

    It has what `MultiTokenTrainer` adds to Transformers' Trainer, and:
    - In each epoch other words are masked (`MaskingCollator`), `mask_share` of them. With persistent workers of the
      data loader they are the same in each.
    - An evaluation masks the same words for every model, and reports `perplexity`: exp of the mean negative
      log-likelihood of masked words. It depends on `mask_share`.

    Data sets have `input_ids`. With a column `labels`, as `hf_targets.mask_rows` makes it, words are masked already.

    Raises:
        ValueError: As `MultiTokenTrainer`; if there is neither a tokenizer nor a collator; or if a data set has labels
            and no masked word.
    """

    args: MultiTokenMaskedTrainingArguments
    needed_columns = ("input_ids",)
    made_by = "hf_targets.mask_rows makes them"

    def __init__(
        self,
        model: PreTrainedModel | nn.Module,
        args: MultiTokenMaskedTrainingArguments,
        *,
        data_collator: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, MultiTokenMaskedTrainingArguments):
            raise ValueError(f"args must be MultiTokenMaskedTrainingArguments, got {type(args).__name__}")
        if data_collator is None:
            if processing_class is None:
                raise ValueError("words are masked by the tokenizer's mask token; give processing_class=tokenizer")
            seed = args.seed if args.data_seed is None else args.data_seed
            data_collator = MaskingCollator(processing_class, args.mask_share, seed=seed)
        self._masked: dict[str, Dataset] = {}
        super().__init__(model, args, data_collator=data_collator, processing_class=processing_class, **kwargs)
        if isinstance(data_collator, MaskingCollator):
            self.add_callback(EpochCallback(data_collator))
        self._loss_shifts_labels = False  # each label is the word at its own position

    @property
    def smooths_labels(self) -> bool:
        """Whether the model or this trainer smooths labels: always."""
        return True

    def _check_dataset(self, dataset: Any, name: str) -> None:
        super()._check_dataset(dataset, name)
        if isinstance(dataset, Dataset) and "labels" in dataset.column_names:
            check_masked(dataset, name)

    def _targets(self, labels: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        return labels

    def _row_targets(self, labels: Tensor) -> Tensor:
        return labels

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of an evaluation, whose words are masked once for all."""
        known: Any = self.eval_dataset
        dataset = (
            known[eval_dataset] if isinstance(eval_dataset, str) else known if eval_dataset is None else eval_dataset
        )
        return super().get_eval_dataloader(self._mask_once(dataset))

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Return the loader of data to predict, masked as for an evaluation."""
        return super().get_test_dataloader(self._mask_once(test_dataset))

    def _mask_once(self, dataset: Any) -> Any:
        if not isinstance(dataset, Dataset) or "labels" in dataset.column_names:
            return dataset
        tokenizer: Any = self.processing_class
        if dataset._fingerprint not in self._masked:
            masked = mask_rows(dataset, tokenizer, self.args.mask_share, seed=EVALUATION_SEED)
            self._masked[dataset._fingerprint] = masked
        return self._masked[dataset._fingerprint]

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss of a model with heads as `MultiTokenTrainer` does, and that of a plain one from its logits.

        BERT and its kin divide their loss by the targets of a part of a step, whatever the count of the whole step.
        """
        if self.has_heads:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return self._loss_of_plain(model, inputs, return_outputs, num_items_in_batch)

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, each row's negative log-likelihood of masked words (rows, 1), and how many there are."""
        return TargetTrainer.row_losses(self, model, inputs)

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the perplexity of masked words."""
        return TargetTrainer.metrics(self, losses, num_tokens, num_words)
