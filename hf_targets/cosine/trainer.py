"""Transformers' Trainer with cosine regularisation, for any model with output embeddings."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel, Seq2SeqTrainer, TrainingArguments

from hf_targets.training.cosine_regularization import CosineRegularization


class CosineRegularizedTrainer(CosineRegularization):
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
        self.cosine_weight, self.cosine_ignore_index = given, ignore_index
        self._check_regularization()


class CosineRegularizedSeq2SeqTrainer(CosineRegularizedTrainer, Seq2SeqTrainer):
    """`CosineRegularizedTrainer` that can generate in evaluations, as `transformers.Seq2SeqTrainer` does."""
