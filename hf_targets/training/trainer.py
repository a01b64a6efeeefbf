"""The Trainer that ours are: it checks data, logs every part of the loss, and gives new parts a rate of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from weakref import WeakMethod

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from hf_targets.backbones.alignment import mask_first_tokens, next_targets
from hf_targets.backbones.new_parts import new_parts_of, split_new_parts, unwrapped
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.backbones.weight_access import num_rows
from hf_targets.backbones.wrapping import new_parts_rate
from hf_targets.data.blocks import check_token_ids
from hf_targets.data.token_rows import NUM_WORDS, check_words, sum_of_words
from hf_targets.maths.losses import IGNORED, perplexity, target_count
from hf_targets.maths.torch_modes import widest
from hf_targets.training.checkpoints import KeepsUseCache, newest_checkpoint
from hf_targets.training.conversations import ConversationRows
from hf_targets.training.loss_parts import CosinePenalty, LossParts, TimedLogs
from hf_targets.training.streams import StreamLoading, whole
from hf_targets.training.uploads import uploads_of_own_files

_UNCOUNTED = -1  # words of a row without the column


def num_targets(targets: Tensor) -> Tensor:
    """Return how many of the targets (batch, time) of each row are not -100, (batch,)."""
    return (targets != IGNORED).sum(dim=1)


class WeaklyBound:
    """A call of a method that does not keep its object alive, as a trainer's own would; None once that is gone."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = WeakMethod(method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        method = self._method()
        return None if method is None else method(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return WeaklyBound, (self._method(),)


@contextmanager
def noise_of_this_process(args: TrainingArguments) -> Iterator[None]:
    """Draw random numbers of this process's own, from a seed that all draw; Trainer gives all the same seed."""
    if args.world_size == 1:
        yield
        return
    drawn = int(torch.randint(2**31, ()))
    seed = np.random.SeedSequence(drawn, spawn_key=(args.process_index,)).generate_state(1)
    device = args.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(int(seed[0]))
        yield


def _both(
    own: Callable[[EvalPrediction], dict[str, float]],
    given: Callable[[EvalPrediction], dict[str, float]],
    predictions: EvalPrediction,
) -> dict[str, float]:
    return {**own(predictions), **given(predictions)}


class TargetTrainer(StreamLoading, KeepsUseCache, Trainer):
    """Trainer of a model whose output has `loss_parts`, plain or under peft; or of any other, as a baseline.

    It logs each part of the loss as `loss_NAME`. With `cosine_weight` in its arguments it keeps output embeddings
    apart (`CosinePenalty`); `loss_cosine` in the log is the mean cosine.

    `train(resume_from_checkpoint=True)` goes on from the newest whole checkpoint; a training that had come to its end
    is not repeated, its weights are loaded.

    Metrics of a `compute_metrics` that is given are added to its own, and come alone with `batch_eval_metrics` or
    `predict_with_generate`. That function gets no logits: `predictions` are what `row_losses` returns of all rows,
    (rows, kinds), and `label_ids` their numbers of targets and words, (rows, 2), -1 where the words are not known.

    Raises:
        ValueError: Before training starts, if a data set has token ids beyond the model's vocabulary.
    """

    count_columns: tuple[str, ...] = (NUM_WORDS,)
    """Columns of numbers that a perplexity is divided by, which no model reads."""
    needed_columns: tuple[str, ...] = ("input_ids", "labels")
    """Columns that data must have."""
    made_by = "hf_targets.pack_blocks makes them"
    """What to do about data without the columns that are needed."""
    reads_conversations = False
    """Whether rows may be messages, or prompts with their completions."""
    shifts_labels = True
    """Whether a label is the target of the position before it, as of causal models; otherwise it is that of its own."""

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        **kwargs: Any,
    ) -> None:
        self._parts, self._rows = LossParts(), None
        kwargs["eval_dataset"] = whole(kwargs.get("eval_dataset"))
        if kwargs.get("preprocess_logits_for_metrics") and not getattr(args, "predict_with_generate", False):
            raise ValueError(
                "preprocess_logits_for_metrics has no logits to work on: evaluations gather each row's losses, which "
                "compute_metrics gets; leave it out, or use transformers.Trainer"
            )
        given, own = kwargs.get("compute_metrics"), WeaklyBound(self._compute_metrics)
        if given is None:
            kwargs["compute_metrics"] = None if getattr(args, "batch_eval_metrics", False) else own
        elif args is not None and not args.batch_eval_metrics and not getattr(args, "predict_with_generate", False):
            kwargs["compute_metrics"] = partial(_both, own, given)
        if model is not None:
            repair_reformer(model)  # pyright: ignore[reportArgumentType]
        super().__init__(model, args, data_collator or default_data_collator, **kwargs)
        if self.compute_loss_func and (new := new_parts_of(cast(nn.Module, self.model))):
            raise ValueError(
                f"compute_loss_func replaces the loss of the model, and with it that of {' and '.join(new)}; leave it "
                "out, or give model.backbone to transformers.Trainer"
            )
        if self.reads_conversations:
            tokenizer = self.processing_class or getattr(data_collator, "tokenizer", None)
            limit = getattr(self.args, "max_row_length", None)
            self._rows = ConversationRows(cast(nn.Module, self.model), tokenizer, limit)
            self.train_dataset = self._as_rows(self.train_dataset, "train")
            self.eval_dataset = self._as_rows(self.eval_dataset, "eval")
        if self.pop_callback(PrinterCallback) is not None:
            self.add_callback(TimedLogs())
        self._model_smooths_labels = getattr(unwrapped(cast(nn.Module, self.model)), "smooths_labels", False)
        if self._model_smooths_labels:
            self.label_smoother = None  # which would take the labels, and need all logits
        elif self.label_smoother is not None:
            self.label_smoother = cast(Any, WeaklyBound(self._loss_of_logits))
        self._cosine = CosinePenalty(self, getattr(self.args, "cosine_weight", 0.0))
        self._loss_shifts_labels = self.shifts_labels  # Transformers does not know this of GPT-2, for one
        named = {"train": self.train_dataset}
        named |= self.eval_dataset if isinstance(self.eval_dataset, dict) else {"eval": self.eval_dataset}
        for name, dataset in named.items():
            self._check_dataset(dataset, name)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make a model, as one that is given is made ready."""
        model = super().call_model_init(trial)
        repair_reformer(cast(PreTrainedModel, model))
        return model

    @property
    def new_parts_learning_rate(self) -> float | None:
        """The learning rate of the new parts; None if they use that of the backbone, as on one that is not trained."""
        return new_parts_rate(cast(nn.Module, self.model), self.args.learning_rate)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train as Trainer does, from a checkpoint if one is given; True is the newest whole one."""
        self._parts.clear()
        if str(resume_from_checkpoint).lower() == "true":
            resume_from_checkpoint = newest_checkpoint(cast(str, self.args.output_dir))
            if resume_from_checkpoint is None:
                raise ValueError(f"there is no whole checkpoint in {self.args.output_dir}; train without resuming")
        return super().train(resume_from_checkpoint, **kwargs)

    def _load_best_model(self) -> None:
        best = Path(cast(str, self.args.output_dir), Path(cast(str, self.state.best_model_checkpoint)).name)
        if best.is_dir():  # the folder may have been moved since
            self.state.best_model_checkpoint = str(best)
        super()._load_best_model()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the parts of the loss beside the loss."""
        self._parts.move_to(logs, self)
        super().log(logs, start_time)

    @property
    def _vocab_sizes(self) -> dict[str, int]:
        """How many ids the model has embeddings for, in each column."""
        model = cast(Any, self.model)
        read, written = model.get_input_embeddings(), model.get_output_embeddings()
        return {"input_ids": num_rows(read), "labels": num_rows(read if written is None else written)}

    def _check_dataset(self, dataset: Any, name: str) -> None:
        check_words(dataset, f"the {name} data: ")
        if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom":
            return  # none, or one whose rows are not known before they are asked for
        if missing := set(self.needed_columns) - set(dataset.column_names):
            raise ValueError(
                f"the {name} data needs the columns {' and '.join(self.needed_columns)}, and lacks "
                f"{', '.join(sorted(missing))} among {dataset.column_names}; {self.made_by}"
            )
        if not len(dataset):
            raise ValueError(f"the {name} data must have rows, got none")
        check_token_ids(dataset, self._vocab_sizes)

    def _as_rows(self, data: Any, name: str) -> Any:
        rows = data if self._rows is None else self._rows(data, name)
        if self._rows is not None and self._rows.has_made and self.data_collator is default_data_collator:
            self.data_collator = self._rows.collate  # the other pads nothing
        return rows

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as Trainer does."""
        return super().predict(self._as_rows(whole(test_dataset), "test"), *args, **kwargs)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as Trainer does; a data set that is given is looked at first."""
        eval_dataset = self._as_rows(whole(eval_dataset), "evaluation")
        self._check_dataset(eval_dataset, "evaluation")
        return super().evaluate(eval_dataset, *args, **kwargs)

    @property
    def evaluation_collator(self) -> Any:
        """The collator of evaluations and predictions; one that draws numbers draws the same ones for all seeds."""
        return self.data_collator

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        of_training = self.data_collator
        if not kwargs.get("is_training"):
            self.data_collator = self.evaluation_collator
        try:
            return super()._get_dataloader(*args, **kwargs)
        finally:
            self.data_collator = of_training

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any, **kwargs: Any) -> Any:
        """Collect the batches of a step; what no model can predict is no target, and is not counted as one."""
        return super().get_batch_samples(map(self._as_read, epoch_iterator), *args, **kwargs)

    def _as_read(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the model's call: no label that it cannot predict, and an output with names."""
        if "labels" not in batch:
            raise ValueError(f"a batch needs labels, got {', '.join(batch)}; {self.made_by}")
        masks = batch.get("attention_mask"), batch.get("position_ids")
        config = getattr(unwrapped(cast(nn.Module, self.model)), "config", None)
        named = {"return_dict": True} if getattr(config, "return_dict", True) is False else {}
        return {**batch, **named, "labels": self._targets(batch["labels"], *masks)}

    def _targets(self, labels: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """Return labels (batch, time) with -100 where the model can predict nothing."""
        return mask_first_tokens(labels, attention_mask, position_ids) if self.shifts_labels else labels

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        added = [name for name in self.count_columns if name not in self._signature_columns]
        self._signature_columns = [*self._signature_columns, *added]

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Create the optimizer, with the new parts in groups of their own, which may have a rate of their own.

        They have groups without one too: a model that is loaded to go on training looks trained, and its state fits.
        """
        core = cast(nn.Module, self.model)
        if self.optimizer is not None or not new_parts_of(core):
            return super().create_optimizer(model)
        return split_new_parts(super().create_optimizer(model), core, self.new_parts_learning_rate)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss as Trainer does, and keep its parts for the log; models of ours smooth labels themselves."""
        inputs = {name: value for name, value in inputs.items() if name not in self.count_columns}
        if self._model_smooths_labels and model.training:
            inputs["label_smoothing"] = self.args.label_smoothing_factor
        loss, outputs = cast(tuple[Tensor, Any], super().compute_loss(model, inputs, True, num_items_in_batch))
        parts = outputs.get("loss_parts") if model.training else None
        if parts is not None:
            # of the loss: the log has their mean
            self._parts.keep(parts, self.state.global_step, self._loss_scale(num_items_in_batch))
        loss = self._regularized(loss, model, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _regularized(self, loss: Tensor, model: nn.Module, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Return a batch's loss with its share of the step's regularisation, in training."""
        return self._cosine.added(loss, self, num_items_in_batch, self._parts) if model.training else loss

    def _loss_of_logits(
        self, outputs: Any, labels: Tensor, *, num_items_in_batch: Tensor | int | None = None, **_: Any
    ) -> Tensor:
        """Return the loss of a plain model by its logits, in training with smoothed labels.

        Trainer's own smoother does not see which label belongs to a position where a model is compiled.

        Args:
            labels: (batch, time), as the model gets them.
            num_items_in_batch: Divisor of the loss; None: the number of targets.
        """
        targets, logits = self._row_targets(labels), outputs["logits"].float().flatten(0, 1)
        share = self.args.label_smoothing_factor if cast(nn.Module, self.model).training else 0.0
        settings = {"ignore_index": IGNORED, "label_smoothing": share, "reduction": "sum"}
        return F.cross_entropy(logits, targets.flatten(), **settings) / target_count(targets, num_items_in_batch)

    def _loss_scale(self, num_items_in_batch: Tensor | int | None) -> int:
        """Return the factor by which Trainer scales a loss that is divided by the targets of all processes."""
        summed = self.args.average_tokens_across_devices and num_items_in_batch is not None
        return self.accelerator.num_processes if summed else 1

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the loss, each row's losses (rows, kinds), and each row's numbers of targets and words (rows, 2)."""
        inputs = self._as_read(self._prepare_inputs(inputs))
        words = inputs.pop(NUM_WORDS, None)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, losses, counts = self.row_losses(model, inputs)
        words = torch.full_like(counts, _UNCOUNTED) if words is None else words
        counts = torch.stack([counts, words], dim=1)
        return loss.detach().mean(), losses.to(widest(losses.device)), counts

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `metrics` are made of: here, of a causal model that has nothing beside its backbone.

        Args:
            inputs: Of an evaluation batch, without `num_words`.
        Returns: The loss, each row's summed negative log-likelihood (rows, 1), and each row's number of targets.
        """
        return self._losses_of(model(**inputs), self._row_targets(inputs["labels"]))

    @staticmethod
    def _losses_of(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `row_losses` of the outputs for each position's target (batch, time)."""
        logits = outputs.logits.float().transpose(1, 2)
        nlls = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
        return outputs.loss, nlls.sum(dim=1)[:, None], num_targets(targets)

    def _row_targets(self, labels: Tensor) -> Tensor:
        """Return the target of each position (batch, time) of labels in which no first token is a target."""
        return next_targets(labels, None) if self.shifts_labels else labels

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the metrics of an evaluation.

        Args:
            losses: (rows, kinds), of `row_losses`, of all rows.
            num_tokens: Targets of all rows, at least one.
            num_words: Words that they make; 0 where the data does not tell.
        """
        return {"perplexity": perplexity(losses[:, 0].sum().item() / num_tokens)}

    def _compute_metrics(self, predictions: EvalPrediction) -> dict[str, float]:
        tokens, words = torch.as_tensor(predictions.label_ids).T.tolist()
        num_tokens = sum(tokens)
        num_words = sum_of_words([None if count == _UNCOUNTED else count for count in words]) or 0
        if not num_tokens:
            raise ValueError("an evaluation needs at least one target: no label of the data is one that is predicted")
        return self.metrics(torch.as_tensor(predictions.predictions), num_tokens, num_words)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        with uploads_of_own_files(cast(str, self.args.output_dir), self.processing_class):
            super()._push_from_checkpoint(checkpoint_folder)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Upload the model as Trainer does, with its tokenizer, card and results, and no other file of its folder."""
        with uploads_of_own_files(cast(str, self.args.output_dir), self.processing_class):
            return super().push_to_hub(*args, **kwargs)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        tied = getattr(self.model, "all_tied_weights_keys", {})  # saved once, under their other name
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)
