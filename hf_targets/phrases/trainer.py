"""Training and evaluation of a language model with a dynamic vocabulary, or of a plain one as a baseline."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import IterableDataset, RandomSampler, Sampler, SequentialSampler
from transformers import PreTrainedModel
from transformers.trainer_pt_utils import BatchRebalanceSampler

from hf_targets.backbones.alignment import next_targets
from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.packing import check_packing
from hf_targets.backbones.weight_access import num_rows
from hf_targets.maths.losses import perplexity
from hf_targets.phrases.batches.collator import BEFORE_COLUMN, SEED_COLUMN, PhraseCollator
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.training.arguments import TargetTrainingArguments
from hf_targets.training.trainer import TargetTrainer, WeaklyBound, num_targets

_EVALUATION_SEED = 0  # the same for all training seeds, so that runs are compared on the same phrases


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
                f"label_smoothing_factor must be 0, got {self.label_smoothing_factor}: each batch has other phrases"
            )
        super().__post_init__()

    def for_baseline(self) -> Self:
        """Return a copy for a model without a phrase encoder, without the encoder's learning rate."""
        args = super().for_baseline()
        args.encoder_learning_rate = None
        return args


Draw = list[tuple[int, int]]
"""The epoch and the index of a row, and those of the rows at its position of earlier batches, the latest first."""


class RowDraws(Sampler[Draw]):
    """A sampler that gives the rows of another sampler, in its order, each with rows of earlier batches of the epoch.

    Args:
        order: Gives the indices of an epoch's rows.
        epoch: Called when an epoch begins; returns its number, or None for the first.
        stride: The number of rows between the starts of two successive batches of a process: the rows of a batch, times
            the number of processes that receive batches alternately.
        num_before: The largest number of earlier batches.
    """

    def __init__(
        self, order: Sampler[int], *, epoch: Callable[[], int | None], stride: int, num_before: int = 0
    ) -> None:
        self.order, self.epoch, self.stride, self.num_before = order, epoch, stride, num_before

    def __len__(self) -> int:
        return len(self.order)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[Draw]:
        epoch = self.epoch() or 0
        if isinstance(self.order, SeedableRandomSampler):
            self.order.set_epoch(epoch)
        indices = list(self.order)
        for position in range(len(indices)):
            yield [(epoch, indices[at]) for at in range(position, -1, -self.stride)[: self.num_before + 1]]


class DrawnRows(torch.utils.data.Dataset):
    """A data set that is indexed by what `RowDraws` gives, and whose rows have two more columns.

    - `row_seed`: an integer that depends only on the seed, the epoch and the row.
    - `rows_before`: the rows of earlier batches, each with its own `row_seed`.

    Args:
        rows: Any data set of mappings.
        seed: The seed from which the seeds of all rows are made.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], seed: int) -> None:
        self.rows, self.seed = rows, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, draw: Draw) -> dict[str, Any]:
        row, *before = (self._seeded(epoch, index) for epoch, index in draw)
        return {**row, BEFORE_COLUMN: before}

    def _seeded(self, epoch: int, index: int) -> dict[str, Any]:
        seed = np.random.SeedSequence((self.seed, epoch, index)).generate_state(1)
        return {**self.rows[index], SEED_COLUMN: int(seed[0])}


class DynamicVocabTrainer(TargetTrainer):
    """Trainer of `DynamicVocabForCausalLM`, with or without peft, and of plain causal models as baselines.

    It logs each part of the loss by name, and can give the phrase encoder its own learning rate. An evaluation reports
    two perplexities, both per token of the text:

    - `perplexity`: of the text in tokens, without phrases. It can be compared with any language model's.
    - `best_path_perplexity`: of the text with the phrases that the collator chose. Probabilities are over tokens and
      the phrases and negatives of the batch. It scores one segmentation of the text among many, and each additional
      negative raises it.

    The phrases of a training row depend only on the seed, the epoch and the row (`DrawnRows`), in a stream on the seed
    and the position, so that a resumed run has the same batches as an uninterrupted one.

    The data sets have the columns `input_ids`, `labels` and `attention_mask`, as made by `hf_targets.pack_blocks`. They
    may also have `messages`, or `prompt` and `completion`, of which the assistant's tokens are the targets.

    Args:
        data_collator: A `PhraseCollator`, which packs rows without padding if it is `padding_free`; for a plain model,
            a collator of Transformers.
    Raises:
        ValueError: If the collator does not fit the model, rows are packed and the backbone does not keep them apart, a
            data set has token ids outside the model's vocabulary, or `encoder_learning_rate` is set for a model without
            a phrase encoder.
    """

    args: DynamicVocabTrainingArguments
    reads_conversations = True

    def __init__(
        self,
        model: PreTrainedModel | nn.Module,
        args: DynamicVocabTrainingArguments,
        data_collator: Any = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, DynamicVocabTrainingArguments):
            raise ValueError(f"args must be DynamicVocabTrainingArguments, got {type(args).__name__}")
        self.has_phrases = isinstance(unwrapped(model), DynamicVocabForCausalLM)
        if self.has_phrases != isinstance(data_collator, PhraseCollator):
            wanted = "a PhraseCollator, which chooses the phrases" if self.has_phrases else "another data_collator"
            raise ValueError(f"{type(model).__name__} needs {wanted}, got {type(data_collator).__name__}")
        if not self.has_phrases and args.encoder_learning_rate is not None:
            raise ValueError(f"{type(model).__name__} has no phrase encoder; leave out encoder_learning_rate")
        if self.has_phrases:
            vocab_size = num_rows(model.get_output_embeddings())  # pyright: ignore
            if data_collator.vocab_size != vocab_size:
                raise ValueError(
                    f"phrase ids must begin at {vocab_size}, the number of the model's tokens, got "
                    f"{data_collator.vocab_size}; make the collator with vocab_size={vocab_size}"
                )
            accelerator: Any = args.accelerator_config
            if accelerator.dispatch_batches:
                raise ValueError("dispatch_batches cuts tables of phrases as if they were rows; leave it out")
            accelerator.dispatch_batches = False  # accelerate's default for streaming data sets is True
            if isinstance(kwargs.get("train_dataset"), IterableDataset):
                data_collator = copy.copy(data_collator)
                data_collator.generator = None  # torch's global one, which depends on the position in a stream
        super().__init__(model=model, args=args, data_collator=data_collator, **kwargs)
        check_packing(cast(nn.Module, self.model), self.data_collator)

    @property
    def new_parts_learning_rate(self) -> float | None:
        """The phrase encoder's learning rate; None: that of the backbone."""
        return self.args.encoder_learning_rate

    @property
    def evaluation_collator(self) -> Any:
        """The collator whose phrases are the same in each evaluation; it pads, so that each row has its own losses."""
        if not isinstance(self.data_collator, PhraseCollator):
            return self.data_collator
        ours = self.data_collator.seeded(_EVALUATION_SEED)
        ours.padding_free = False
        return ours

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        added = [name for name in (SEED_COLUMN, BEFORE_COLUMN) if name not in self._signature_columns]
        self._signature_columns = [*self._signature_columns, *added]

    def _get_dataloader(
        self, dataset: Any, description: str, batch_size: int, sampler_fn: Any = None, **kwargs: Any
    ) -> Any:
        is_training = bool(kwargs.get("is_training"))
        if self.has_phrases and not isinstance(dataset, IterableDataset):
            order = None if sampler_fn is None else sampler_fn(dataset)
            if order is None and not is_training:
                order = SequentialSampler(dataset)
            if not isinstance(order, BatchRebalanceSampler | None):  # it gives batches; Trainer checks for it
                if isinstance(dataset, Dataset):
                    dataset = self._remove_unused_columns(dataset, description=description)
                seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
                seed = seed if is_training else _EVALUATION_SEED
                draws = self._row_draws(order, batch_size, seed, cast(PhraseCollator, self.data_collator), is_training)
                dataset, sampler_fn = DrawnRows(dataset, seed), lambda _: draws
        return super()._get_dataloader(dataset, description, batch_size, sampler_fn, **kwargs)

    def _row_draws(
        self, order: Sampler[int], batch_size: int, seed: int, collator: PhraseCollator, is_training: bool
    ) -> RowDraws:
        if isinstance(order, RandomSampler):  # accelerate does the same for a sampler that it can see
            order = SeedableRandomSampler(order.data_source, data_seed=seed)
        batches_apart = 1 if self.accelerator.split_batches else self.accelerator.num_processes
        return RowDraws(
            order,
            epoch=WeaklyBound(self._epoch) if is_training else int,  # epoch 0
            stride=batch_size * batches_apart,
            num_before=collator.num_batches_before,
        )

    def _epoch(self) -> int:
        return int(self.state.epoch or 0)

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the summed losses of each row, and its number of targets in tokens, (rows,).

        The summed losses are (rows, 2): of the text in tokens, and of the text with phrases. For a plain model they
        are (rows, 1).
        """
        if not self.has_phrases:
            return super().row_losses(model, inputs)
        outputs = model(**inputs, skip_logits=True)
        losses = torch.stack([outputs.row_losses["token"], outputs.row_losses["phrase"]], dim=1)
        return outputs.loss, losses, num_targets(next_targets(inputs["labels"], None))

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the perplexity of the text in tokens and, for a model with phrases, `best_path_perplexity`."""
        names = ("perplexity", "best_path_perplexity")
        sums = losses.sum(dim=0).tolist()
        return {name: perplexity(total / num_tokens) for name, total in zip(names, sums, strict=False)}
