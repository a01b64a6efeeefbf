"""Checks of the arguments of a call of a masked language model."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hf_targets.backbones.inputs import check_count, check_ids, check_integers, check_shapes
from hf_targets.maths.losses import IGNORED

_NOT_TAKEN = ("shift_labels", "logits_to_keep", "past_key_values", "ensemble_weight", "nll_weights")
"""Arguments of models that write text, which a backbone might silently ignore."""


def check_masked_call(
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    labels: Tensor | None,
    num_items_in_batch: Tensor | int | None,
    given: Mapping[str, Any],
    *,
    vocab_size: int,
) -> Tensor:
    """Check a text and its labels, and return the text: `input_ids` or `inputs_embeds`.

    Args:
        labels: (batch, time), the token at each masked position; -100 elsewhere.
        given: The other arguments of the call.
        vocab_size: Rows of the output matrix.
    Raises:
        ValueError: If an argument is one of models that write text, there is a count of targets but no labels, the text
            is missing or empty, labels have another shape than the text, or an id is outside the vocabulary.
    """
    if wrong := [name for name in _NOT_TAKEN if given.get(name) is not None]:
        raise ValueError(
            f"a masked model takes no {wrong[0]}: it gives logits of all positions, has no cache and no ensemble, "
            "and its labels are not shifted; leave it out"
        )
    check_count(num_items_in_batch, has_labels=labels is not None)
    text = check_shapes(input_ids, inputs_embeds)
    check_integers(labels=labels)
    if labels is not None and labels.shape != text.shape[:2]:
        raise ValueError(
            f"labels must have the shape of input_ids, {tuple(text.shape[:2])}, got {tuple(labels.shape)}; give "
            "the token of each masked position, and -100 elsewhere"
        )
    if input_ids is not None:
        check_ids(input_ids, vocab_size, "input_ids")
    if labels is not None:
        check_ids(labels, vocab_size, "labels", IGNORED)
    return text


def without_padding(labels: Tensor, attention_mask: Any) -> Tensor:
    """Return labels (batch, time) that are -100 at padding, where a mask (batch, time) is 0."""
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        return labels.masked_fill(attention_mask == 0, IGNORED)
    return labels
