"""One call of a causal model around a backbone: its arguments, their checks, and the targets of its positions."""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor
from transformers import Cache, PreTrainedModel

from hf_targets.backbones.alignment import next_targets
from hf_targets.backbones.inputs import check_attention_mask, check_count, check_ids, check_shapes, kept_positions
from hf_targets.backbones.wrapping import backbone_inputs
from hf_targets.maths.losses import IGNORED, target_count


@dataclass(frozen=True)
class CausalCall:
    """The arguments of a call of `forward` of a wrapped causal model.

    Attributes:
        input_ids, labels, shift_labels: (batch, time), integers.
        attention_mask, position_ids, token_type_ids: (batch, time).
        past_key_values: The cache; None: no cache was given.
        inputs_embeds: (batch, time, d), in place of `input_ids`.
        num_items_in_batch: Divisor of a loss; None: the number of targets.
        kept: The positions for which logits are requested.
        others: Arguments that only the backbone uses.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None
    position_ids: Tensor | None
    past_key_values: Cache | None
    inputs_embeds: Tensor | None
    labels: Tensor | None
    shift_labels: Tensor | None
    token_type_ids: Tensor | None
    num_items_in_batch: Tensor | int | None
    kept: slice | Tensor
    others: dict[str, Any]

    @classmethod
    def of(
        cls,
        others: dict[str, Any],
        *,
        logits_to_keep: int | Tensor,
        **given: Any,
    ) -> Self:
        """Check that shapes, mask and count fit each other, and return the call.

        Args:
            others: Keyword arguments that are not parameters of `forward`. `shift_labels` may be among them: it is no
                parameter, as Trainer expects each parameter with "label" in its name in every batch.
            given: The other fields of this class.
        Raises:
            ValueError: If they do not fit, or there is a count but no labels.
        """
        others, labels = dict(others), given["labels"]
        shifted = others.pop("shift_labels", None)
        scored = labels is not None or shifted is not None
        check_count(given["num_items_in_batch"], has_labels=scored)
        text = check_shapes(given["input_ids"], given["inputs_embeds"], labels=labels, shift_labels=shifted)
        check_attention_mask(given["attention_mask"], text, given["past_key_values"])
        kept = kept_positions(logits_to_keep, text.shape[1])
        if scored:
            others.setdefault("use_cache", False)  # with a cache, backbones do not separate packed documents
        return cls(**given, shift_labels=shifted, kept=kept, others=others)

    @property
    def scored(self) -> bool:
        """Whether the call has labels, shifted or not."""
        return self.labels is not None or self.shift_labels is not None

    @property
    def ids(self) -> dict[str, Tensor]:
        """The arguments that hold token ids, by name, without those that are None."""
        named = {"input_ids": self.input_ids, "labels": self.labels, "shift_labels": self.shift_labels}
        return {name: ids for name, ids in named.items() if ids is not None}

    def check_ids(self, vocab_size: int, hint: str = "") -> None:
        """Check that all ids are in the vocabulary.

        Args:
            hint: Advice for the end of the error.
        Raises:
            ValueError: If an id is not.
        """
        for name, ids in self.ids.items():
            check_ids(ids, vocab_size, name, None if name == "input_ids" else IGNORED, hint)

    def read(self, backbone: PreTrainedModel, inputs_embeds: Tensor | None = None) -> Any:
        """Return the outputs of the backbone's base model, which ends before the output matrix.

        Args:
            inputs_embeds: Embeddings to read in place of the given text.
        """
        own = inputs_embeds is None
        return backbone.base_model(
            input_ids=self.input_ids if own else None,
            attention_mask=self.attention_mask,
            position_ids=self.position_ids,
            inputs_embeds=self.inputs_embeds if own else inputs_embeds,
            return_dict=True,
            **backbone_inputs(past_key_values=self.past_key_values, token_type_ids=self.token_type_ids),
            **self.others,
        )

    def targets(self) -> Tensor | None:
        """Return the target of each position, (batch, time), -100 where there is no target; None without labels."""
        if not self.scored:
            return None
        return next_targets(self.labels, self.attention_mask, self.position_ids, shifted=self.shift_labels)

    def count(self, targets: Tensor) -> Tensor | int:
        """Return the divisor of every part of the loss."""
        return target_count(targets, self.num_items_in_batch)

    def wants_logits(self, skip_logits: bool | None, *, training: bool) -> bool:
        """Return whether to compute logits; if `skip_logits` is None, yes except in training with labels."""
        return not (training and self.scored) if skip_logits is None else not skip_logits
