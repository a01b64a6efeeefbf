"""Training, evaluation and translation of encoder-decoder models with future-token heads, or without."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import nn
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.evaluation.translation import translation_scores
from hf_targets.maths.losses import IGNORED
from hf_targets.multitoken.trainer import MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.training.arguments import TokenBatchArguments
from hf_targets.training.token_batches import TokenBatchLoading


@dataclass
class MultiTokenSeq2SeqTrainingArguments(TokenBatchArguments, MultiTokenTrainingArguments, Seq2SeqTrainingArguments):
    """Arguments of `MultiTokenSeq2SeqTrainer`: those of `MultiTokenTrainer` and of `Seq2SeqTrainer`, and batches."""


class MultiTokenSeq2SeqTrainer(TokenBatchLoading, MultiTokenTrainer, Seq2SeqTrainer):
    """Trainer of `MultiTokenForSeq2SeqLM`, plain or under peft, and of a plain encoder-decoder model as its baseline.

    It has what `MultiTokenTrainer` adds to Transformers' Trainer, and:
    - Pairs are padded by `DataCollatorForSeq2Seq`, which needs the tokenizer as `processing_class`.
    - With `tokens_per_batch` batches have about as many tokens each.
    - With `predict_with_generate` evaluations and predictions generate, as `Seq2SeqTrainer` does. Without
      `compute_metrics` they report `bleu` and `chrf` (`translation_scores`). Otherwise evaluations report perplexities
      for all `ensemble_weights`.

    Data sets have `input_ids`, `attention_mask` and `labels`, as `hf_targets.encode_pairs` makes them; for a model of
    speech `input_features` and `labels`, with a collator of your own.

    Departs: weight decay spares biases and norms, as in all of Transformers; in fairseq it reaches them.
    Raises:
        ValueError: As `MultiTokenTrainer`; and without a tokenizer, if there is no collator, or if texts are generated
            and there is no `compute_metrics`.
    """

    args: MultiTokenSeq2SeqTrainingArguments
    made_by = "hf_targets.encode_pairs makes them"
    takes_pairs, reads_conversations, shifts_labels = True, False, False

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: MultiTokenSeq2SeqTrainingArguments | None = None,
        *,
        data_collator: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, MultiTokenSeq2SeqTrainingArguments):
            raise ValueError(f"args must be MultiTokenSeq2SeqTrainingArguments, got {type(args).__name__}")
        if data_collator is None:
            if processing_class is None:
                raise ValueError("pairs are padded by the tokenizer; give processing_class=tokenizer")
            data_collator = DataCollatorForSeq2Seq(processing_class, model=cast(Any, model))
        if args.predict_with_generate and processing_class is None and kwargs.get("compute_metrics") is None:
            raise ValueError(
                "with predict_with_generate the tokenizer makes texts of what is generated; give "
                "processing_class=tokenizer, or compute_metrics"
            )
        super().__init__(model, args, data_collator=data_collator, processing_class=processing_class, **kwargs)

    def _check_dataset(self, dataset: Any, name: str) -> None:
        core = unwrapped(cast(nn.Module, self.model))
        read = getattr(getattr(core, "backbone", core), "main_input_name", "input_ids")  # or features of speech
        self.needed_columns = (read, "labels")
        super()._check_dataset(dataset, name)

    @property
    def loads_whole_pairs(self) -> bool:
        """Whether evaluations take batches of pairs: generation keeps their order."""
        return self.args.predict_with_generate

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the loop of an evaluation; `Seq2SeqTrainer` would count pairs twice that two processes evaluate."""
        self.gather_function = self.accelerator.gather_for_metrics
        return super().evaluation_loop(*args, **kwargs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> Any:
        """Generate with `predict_with_generate`; else return the losses of `MultiTokenTrainer`."""
        if not self.args.predict_with_generate or prediction_loss_only:
            return MultiTokenTrainer.prediction_step(self, model, inputs, prediction_loss_only, ignore_keys)
        inputs = {name: value for name, value in inputs.items() if name not in self.count_columns}
        return Seq2SeqTrainer.prediction_step(self, model, inputs, False, ignore_keys, **gen_kwargs)

    def _compute_metrics(self, predictions: EvalPrediction) -> dict[str, float]:
        if not self.args.predict_with_generate:
            return super()._compute_metrics(predictions)
        tokenizer = cast(PreTrainedTokenizerBase, self.processing_class)
        texts = []
        for ids in (predictions.predictions, predictions.label_ids):
            rows = np.where(np.asarray(ids) == IGNORED, tokenizer.pad_token_id, ids)  # pyright: ignore
            texts.append(tokenizer.batch_decode(rows, skip_special_tokens=True))
        scores = translation_scores(*texts)
        return {"bleu": cast(float, scores.bleu), "chrf": scores.chrf}
