"""Training and evaluation of a language model with a dynamic vocabulary, or of a plain one beside it."""

from typing import Any, cast

import torch
from accelerate.data_loader import SeedableRandomSampler
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import IterableDataset, RandomSampler, Sampler
from transformers import PreTrainedModel
from transformers.trainer_pt_utils import BatchRebalanceSampler

from hf_targets.backbones.alignment import next_targets
from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.weight_access import num_rows
from hf_targets.maths.losses import perplexity
from hf_targets.phrases.arguments import DynamicVocabTrainingArguments
from hf_targets.phrases.batches.collator import PhraseCollator
from hf_targets.phrases.batches.row_draws import BEFORE_COLUMN, SEED_COLUMN, DrawnRows, RowDraws
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.training.trainer import TargetTrainer, num_targets

_EVALUATION_SEED = 0  # of all trainings alike, so that their seeds are compared on the same phrases


def has_phrases(model: nn.Module) -> bool:
    """Return whether this is a model with a dynamic vocabulary, plain or under peft."""
    return isinstance(unwrapped(model), DynamicVocabForCausalLM)


class DynamicVocabTrainer(TargetTrainer):
    """Trainer of `DynamicVocabForCausalLM`, plain or under peft; a plain causal model is the baseline beside it.

    What it adds: every part of the loss is logged by name, the phrase encoder may have a learning rate of its own, and
    an evaluation reports two perplexities, both for each token of the text:

    - `perplexity`: of the text in tokens, without phrases. It compares with any language model's.
    - `best_path_perplexity`: of the text with the phrases that the collator chose, over tokens and the phrases and
      negatives of its batch. It is of one way to write the text among many, and falls with the number of negatives.

    The phrases of a training row depend on the seed, the epoch and the row alone (`phrases.batches.row_draws`), so that
    a resumed training has the batches of an unbroken one.

    The data sets have `input_ids`, `labels`, `attention_mask`, as `hf_targets.pack_blocks` makes them.

    Args:
        data_collator: A `PhraseCollator`; a plain model takes Transformers' own.
    Raises:
        ValueError: Before training starts, if the collator does not fit the model, a data set has token ids beyond its
            vocabulary, or an encoder's learning rate is asked for of a model that has none.
    """

    args: DynamicVocabTrainingArguments

    def __init__(
        self,
        model: PreTrainedModel | nn.Module,
        args: DynamicVocabTrainingArguments,
        data_collator: Any = None,
        **kwargs: Any,
    ) -> None:
        self.has_phrases = has_phrases(model)
        if not isinstance(args, DynamicVocabTrainingArguments):
            raise ValueError(f"args must be DynamicVocabTrainingArguments, got {type(args).__name__}")
        if self.has_phrases != isinstance(data_collator, PhraseCollator):
            wanted = "a PhraseCollator, which makes its phrases" if self.has_phrases else "no PhraseCollator"
            raise ValueError(f"{type(model).__name__} takes {wanted}, got {type(data_collator).__name__}")
        if not self.has_phrases and args.encoder_learning_rate is not None:
            raise ValueError(f"{type(model).__name__} has no phrase encoder: leave out encoder_learning_rate")
        if self.has_phrases:
            vocab_size = num_rows(model.get_output_embeddings())  # pyright: ignore
            if data_collator.vocab_size != vocab_size:
                raise ValueError(
                    f"phrase ids begin where the model's {vocab_size} tokens end, and the collator's begin at "
                    f"{data_collator.vocab_size}; make it with vocab_size={vocab_size}"
                )
        super().__init__(model=model, args=args, data_collator=data_collator, **kwargs)

    @property
    def new_parts_learning_rate(self) -> float | None:
        """The phrase encoder's learning rate, if it is another than the backbone's."""
        return self.args.encoder_learning_rate

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Load evaluation batches, whose phrases are the same each time, whatever the seed of the training."""
        training = self.data_collator
        if isinstance(training, PhraseCollator):
            self.data_collator = training.seeded(_EVALUATION_SEED)
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = training

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        added = [name for name in (SEED_COLUMN, BEFORE_COLUMN) if name not in self._signature_columns]
        self._signature_columns = [*self._signature_columns, *added]

    def _get_dataloader(
        self, dataset: Any, description: str, batch_size: int, sampler_fn: Any = None, **kwargs: Any
    ) -> Any:
        if kwargs.get("is_training") and self.has_phrases and not isinstance(dataset, IterableDataset):
            order = sampler_fn(dataset)
            if not isinstance(order, BatchRebalanceSampler | None):  # that one gives batches, and is known by its class
                if isinstance(dataset, Dataset):
                    dataset = self._remove_unused_columns(dataset, description=description)
                seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
                draws = self._row_draws(order, batch_size, seed, cast(PhraseCollator, self.data_collator))
                dataset, sampler_fn = DrawnRows(dataset, seed), lambda _: draws
        return super()._get_dataloader(dataset, description, batch_size, sampler_fn, **kwargs)

    def _row_draws(self, order: Sampler[int], batch_size: int, seed: int, collator: PhraseCollator) -> RowDraws:
        if isinstance(order, RandomSampler):  # as accelerate makes of it where it sees it
            order = SeedableRandomSampler(order.data_source, data_seed=seed)
        turns = 1 if self.accelerator.split_batches else self.accelerator.num_processes
        return RowDraws(
            order,
            epoch=lambda: int(self.state.epoch or 0),
            stride=batch_size * turns,
            num_before=collator.num_batches_before,
        )

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, each row's summed losses (in tokens, with phrases), and its number of targets in tokens."""
        if not self.has_phrases:
            return super().row_losses(model, inputs)
        outputs = model(**inputs, skip_logits=True)
        losses = torch.stack([outputs.row_losses["token"], outputs.row_losses["phrase"]], dim=1)
        return outputs.loss, losses, num_targets(next_targets(inputs["labels"], None))

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the perplexity in tokens, and with phrases that of the way of writing the text that was drawn."""
        names = ("perplexity", "best_path_perplexity")
        sums = losses.sum(dim=0).tolist()
        return {name: perplexity(total / num_tokens) for name, total in zip(names, sums, strict=False)}
