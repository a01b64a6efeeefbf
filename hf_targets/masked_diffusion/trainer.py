"""Training and evaluation of masked diffusion models, and the arguments of their Trainer."""

import copy
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset
from transformers import DataCollatorWithFlattening, PreTrainedModel

from hf_targets.backbones.inputs import without_padding
from hf_targets.backbones.new_parts import unwrapped
from hf_targets.data.blocks import has_token
from hf_targets.data.token_rows import NUM_WORDS
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.masked_diffusion.noisy_batch import CURVES_ARE_PADDED
from hf_targets.masked_diffusion.perplexity_bound import EvaluationNoise, mean_bound
from hf_targets.masked_diffusion.rows import (
    MAY_MASK,
    NUM_TOKENS,
    TIMES_COLUMN,
    DiffusionCollator,
    check_one_protocol,
    protocol_columns_of,
)
from hf_targets.maths.losses import perplexity
from hf_targets.maths.statistics import student_margin
from hf_targets.training.arguments import AveragedTrainingArguments
from hf_targets.training.averaging import AveragedTrainer
from hf_targets.training.trainer import noise_of_this_process, num_targets

INDEX_COLUMN = "row_index"


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
            "95%% interval is 2.4 standard errors to either side with 8 draws, 12.7 with 2."
        },
    )
    evaluation_seed: int = field(
        default=0, metadata={"help": "Seed of the times and masks in evaluations; all evaluations use the same."}
    )

    def __post_init__(self) -> None:
        for name, least in (("evaluation_draws", 1), ("test_draws", 1), ("evaluation_seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0, got {self.label_smoothing_factor}: with smoothed labels the loss "
                "is no bound on the likelihood of the text"
            )
        super().__post_init__()


class _RowsWithIndices(TorchDataset):
    """Rows of a data set with their indices, which determine their times and masks in any batch."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.rows[index], INDEX_COLUMN: index}


def _collate_with_indices(collate: Callable[..., Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    batch = collate([{name: value for name, value in row.items() if name != INDEX_COLUMN} for row in rows])
    return {**batch, INDEX_COLUMN: torch.tensor([row[INDEX_COLUMN] for row in rows])}


class DiffusionTrainer(AveragedTrainer):
    """Trainer of `MdlmForMaskedDiffusion`, with or without peft.

    The data sets have the columns `input_ids` and `labels`. Labels equal the ids, or are -100 where a token is not a
    target. `attention_mask` hides padding, and `may_mask` lets tokens be masked that are not targets. Training data may
    also have `timesteps`: then their `input_ids` are masked already. Or they have `messages`, or `prompt` and
    `completion`, of which only the assistant's tokens are masked; `processing_class` is then the tokenizer.

    An evaluation reports `nelbo`, the negative evidence lower bound in nats per token of text, masked or not (their
    number is the sum of `num_tokens`, or without that column that of labels other than -100); `perplexity` =
    exp(nelbo), and with a column `num_words` also `word_perplexity`; and with 2 draws or more `nelbo_standard_error`
    and `nelbo_margin`, half the width of the 95% interval.

    `evaluate(rows, metric_key_prefix="test")` uses `test_draws`; with any other prefix it uses `evaluation_draws`.
    Times and masks depend only on the row and the draw, for any batch size and number of processes. Compare figures
    only for rows of the same `length_protocol`; `masked_diffusion.perplexity_bound` says what they mean.

    Args:
        data_collator: None: a `DiffusionCollator` of the tokenizer (`processing_class`), which pads on the right. With
            `padding_free` it packs the rows of training, for a model without a curve.
    Raises:
        ValueError: Before training starts: if the model has another class, a data set has token ids beyond its
            vocabulary or rows of more than one `length_protocol`, the mask differs from the tokenizer's or is among the
            labels, evaluation data has `timesteps`, or rows are packed for a curve or by `DataCollatorWithFlattening`.
    """

    args: DiffusionTrainingArguments
    count_columns = (NUM_WORDS, NUM_TOKENS, INDEX_COLUMN)
    reads_conversations = True
    shifts_labels = False
    made_by = "wrapped_blocks and sentence_rows of hf_targets.masked_diffusion.rows make them"

    def __init__(
        self,
        model: PreTrainedModel | nn.Module,
        args: DiffusionTrainingArguments,
        data_collator: Any = None,
        **kwargs: Any,
    ) -> None:
        core = unwrapped(model)
        if isinstance(data_collator, DataCollatorWithFlattening):
            raise ValueError(
                "DataCollatorWithFlattening takes the label of each row's first token, which is a target here; give "
                "DiffusionCollator(tokenizer, padding_free=True)"
            )
        if not isinstance(core, MdlmForMaskedDiffusion):
            raise ValueError(f"a DiffusionTrainer trains MdlmForMaskedDiffusion, got {type(core).__name__}")
        if not isinstance(args, DiffusionTrainingArguments):
            raise ValueError(f"args must be DiffusionTrainingArguments, got {type(args).__name__}")
        if getattr(data_collator, "padding_free", False) and core.config.curve is not None:
            raise ValueError(f"{CURVES_ARE_PADDED}; give padding_free=False")
        self._core: MdlmForMaskedDiffusion = core
        self._noise: EvaluationNoise | None = None
        tokenizer = kwargs.get("processing_class")
        mask = getattr(tokenizer, "mask_token_id", None)  # None without a tokenizer or without its mask
        if mask is not None and mask != self._mask_token_id:
            raise ValueError(
                f"tokenizer and model must have the same mask, got the ids {mask} and {self._mask_token_id}; make the "
                "model with mask_token_id=tokenizer.mask_token_id"
            )
        super().__init__(model=model, args=args, data_collator=data_collator or DiffusionCollator(tokenizer), **kwargs)

    def _check_dataset(self, dataset: Any, name: str) -> None:
        if name != "train" and isinstance(dataset, Dataset) and TIMES_COLUMN in dataset.column_names:
            raise ValueError(f"an evaluation masks clean text, and the {name} data has timesteps; give clean text")
        super()._check_dataset(dataset, name)
        if isinstance(dataset, Dataset):
            check_one_protocol(protocol_columns_of(dataset), f"the {name} data: ")
        if isinstance(dataset, Dataset) and has_token(dataset, "labels", self._mask_token_id):
            raise ValueError(f"labels must be clean tokens, and the {name} data has the mask, id {self._mask_token_id}")

    @property
    def _mask_token_id(self) -> int:
        return cast(int, self._core.config.mask_token_id)

    def _targets(self, labels: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        return without_padding(labels, attention_mask)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients with noise that differs between processes, as Trainer gives all processes the same seed."""
        with noise_of_this_process(self.args):
            return super().training_step(model, inputs, *args, **kwargs)

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Evaluate as Trainer does, with times and masks from `evaluation_seed`; the prefix chooses how many draws."""
        is_test, seed = metric_key_prefix.split("_")[0] == "test", self.args.evaluation_seed
        draws = self.args.test_draws if is_test else self.args.evaluation_draws
        self._noise = EvaluationNoise(self._core, len(dataloader.dataset), num_draws=draws, seed=seed)
        kwargs["metric_key_prefix"] = metric_key_prefix
        with torch.random.fork_rng([]):  # a data loader draws a global random number that is not used
            return super().evaluation_loop(dataloader, *args, **kwargs)

    @property
    def evaluation_collator(self) -> Any:
        """The collator of rows that have their indices beside them; it pads, so that each row has its own bound."""
        collator = copy.copy(self.data_collator)
        if isinstance(collator, DiffusionCollator):
            collator.padding_free = False
        return partial(_collate_with_indices, collator)

    def _get_dataloader(self, dataset: Any, description: str, **kwargs: Any) -> Any:
        if kwargs.get("is_training"):
            return super()._get_dataloader(dataset, description, **kwargs)
        if not isinstance(dataset, Sized) or isinstance(dataset, IterableDataset):
            raise ValueError(
                f"evaluation data must have a length, as times are spread evenly over its rows, got "
                f"{type(dataset).__name__}; give Dataset.from_list(list(rows))"
            )
        return super()._get_dataloader(_RowsWithIndices(dataset), description, **kwargs)

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the bound of each row and draw (rows, draws), and the number of text tokens of each row."""
        assert self._noise is not None
        labels, masks = inputs["labels"], (inputs.get("attention_mask"), inputs.get(MAY_MASK))
        nelbos = self._noise.row_nelbos(model, inputs[INDEX_COLUMN].tolist(), inputs["input_ids"], labels, *masks)
        num_tokens = inputs.get(NUM_TOKENS, num_targets(labels))
        return nelbos.mean(dim=1).sum() / num_tokens.sum().clamp(min=1), nelbos, num_tokens

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the metrics that the class describes, from the bounds (rows, draws) of all rows."""
        nelbo, error = mean_bound(losses, num_tokens)
        # replaces Trainer's loss, a mean over batches that depends on their size
        metrics = {"loss": nelbo, "nelbo": nelbo, "perplexity": perplexity(nelbo)}
        if num_words:
            metrics["word_perplexity"] = perplexity(nelbo * num_tokens / num_words)
        if error is not None:
            metrics["nelbo_standard_error"] = error
            metrics["nelbo_margin"] = student_margin(error, losses.shape[1])
        return metrics
