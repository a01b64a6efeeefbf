"""Transformers' Trainer with cosine regularisation, for any model with output embeddings."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer, TrainingArguments

from hf_targets.training.checkpoints import KeepsUseCache
from hf_targets.training.loss_parts import CosinePenalty, LossParts
from hf_targets.training.streams import StreamLoading


class CosineRegularizedTrainer(StreamLoading, KeepsUseCache, Trainer):
    """Transformers' Trainer of any causal, masked or sequence-to-sequence model, whose embeddings it keeps apart.

    Everything else is as in `transformers.Trainer`: its arguments, data, collators and metrics. Trainers of this
    package have the same as `cosine_weight` in their arguments.

    Args:
        args, kwargs: Those of `transformers.Trainer`.
        cosine_weight: Gamma, at least 0; None: that of `args`, if they are arguments of this package, or else 1.
        ignore_index: A row of the output embeddings that does not count, such as that of padding.
    Raises:
        ValueError: If gamma is negative, the model has no output embeddings, or they are frozen.
    Source: Gao et al. 2019, equation (6), in whose experiments gamma is 1.
    """

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        *positional: Any,
        cosine_weight: float | None = None,
        ignore_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, *positional, **kwargs)
        given = getattr(self.args, "cosine_weight", 1.0) if cosine_weight is None else cosine_weight
        self._parts, self._cosine = LossParts(), CosinePenalty(self, given, ignore_index)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does."""
        self._parts.clear()
        return super().train(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss as Trainer does, with the regularisation added to it in training."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            loss = self._cosine.added(loss, self, num_items_in_batch, self._parts)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with `loss_cosine`, the mean cosine without gamma."""
        self._parts.move_to(logs, self)
        super().log(logs, start_time)


class CosineRegularizedSeq2SeqTrainer(CosineRegularizedTrainer, Seq2SeqTrainer):
    """`CosineRegularizedTrainer` that can generate in evaluations, as `transformers.Seq2SeqTrainer` does."""
