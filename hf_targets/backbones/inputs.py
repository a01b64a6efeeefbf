"""What a call of a model may be given: a text, labels and masks that fit it, logits of positions that it has.

Values are looked at on a CPU alone: elsewhere the look would wait for the device.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache

_INTEGERS = (torch.int64, torch.int32)


def check_count(num_items_in_batch: Tensor | int | None, *, has_labels: bool) -> None:
    """Check that a count of targets comes with the labels that it counts.

    Trainer takes the labels away, and leaves the count, to compute a loss of its own from the logits: for its
    `label_smoothing_factor` or a `compute_loss_func`. That loss would train the next token alone.

    Raises:
        ValueError: If it does not.
    """
    if num_items_in_batch is not None and not has_labels:
        raise ValueError(
            "num_items_in_batch counts labels, and there are none: Trainer keeps them for label_smoothing_factor or "
            "compute_loss_func, whose losses are not this model's. Use the model's own trainer of hf_targets, or set "
            "label_smoothing_factor=0; for a loss of your own set model.accepts_loss_kwargs=False before the Trainer "
            "is made"
        )


def check_shapes(input_ids: Tensor | None, inputs_embeds: Tensor | None, **labels: Tensor | None) -> Tensor:
    """Return the input, once it is certain that there is a token, and that all labels are shaped as the input is.

    Raises:
        ValueError: If not.
    """
    given = inputs_embeds if input_ids is None else input_ids
    if given is None or given.shape[0] == 0 or given.shape[1] == 0:
        shape = None if given is None else tuple(given.shape)
        raise ValueError(f"input_ids or inputs_embeds must hold at least one token, got shape {shape}")
    for name, ids in labels.items():
        if ids is not None and ids.shape != given.shape[:2]:
            hint = "they are unshifted: the model shifts them" if name == "labels" else "each at its own position"
            raise ValueError(
                f"{name} must have the shape of input_ids, {tuple(given.shape[:2])}, got {tuple(ids.shape)}; {hint}"
            )
    check_integers(input_ids=input_ids, **labels)
    return given


def check_integers(**named: Tensor | None) -> None:
    """Check that tensors of these names, where there are any, hold token ids.

    Raises:
        ValueError: If they are not of integers.
    """
    for name, ids in named.items():
        if ids is not None and ids.dtype not in _INTEGERS:
            raise ValueError(f"{name} must be token ids, integers, got {ids.dtype}")


def check_ids(ids: Tensor, vocab_size: int, name: str, ignored: int | None = None, hint: str = "") -> None:
    """Check that ids are of the vocabulary.

    Args:
        ignored: A label that is not a target.
        hint: What to do, at the end of the error.
    Raises:
        ValueError: If one is not.
    """
    if not can_look(ids):
        return
    lowest, highest = ids.aminmax()
    if lowest >= 0 and highest < vocab_size:
        return
    wrong = ids[((ids < 0) | (ids >= vocab_size)) & (ids != ignored if ignored is not None else True)]
    if wrong.numel():
        hint = hint or "use the model's own tokenizer, or resize_token_embeddings"
        raise ValueError(
            f"{name} must be in [0, {vocab_size - 1}], the model's vocabulary, got {wrong[0].item()}; {hint}"
        )


def check_segments(token_type_ids: Tensor | None) -> None:
    """Check that a tokenizer's segments are all the first one, for a model that knows no other.

    Raises:
        ValueError: If they are not.
    """
    if token_type_ids is None or not can_look(token_type_ids):
        return
    if token_type_ids.any():
        raise ValueError(
            f"token_type_ids must be 0, as this model knows no second segment, got {int(token_type_ids.max())}; give "
            "the tokenizer one text a row"
        )


def check_attention_mask(attention_mask: Any, text: Tensor, cache: Cache | None) -> None:
    """Check that a mask has a number for each position of the text, and for each one in the cache before it.

    Masks of four dimensions, and those that are no tensors, are the backbone's own kinds. Caches that are not dynamic
    have room for more positions than they hold, and their masks may have it too.

    Args:
        text: `input_ids` (batch, time), or `inputs_embeds` (batch, time, d).
    Raises:
        ValueError: If it has not.
    """
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() == 4:
        return
    if cache is not None and not isinstance(cache, DynamicCache):
        return
    past = 0 if cache is None else cache.get_seq_length()
    batch, time = text.shape[:2]
    if attention_mask.shape != (batch, past + time):
        held = f" with the {past} positions in the cache" if past else ""
        raise ValueError(
            f"attention_mask must be (batch, time), {(batch, past + time)}{held}, got {tuple(attention_mask.shape)}; "
            "take it from the tokenizer's call that made the text, or leave it out where nothing is padded"
        )


def check_padding(attention_mask: Tensor, input_ids: Tensor, *, hint: str, needs_token: bool = False) -> None:
    """Check that a mask has a number for each token, and is 0 at the ends of its rows alone.

    Args:
        attention_mask: (batch, length), 0 at padding.
        input_ids: (batch, length).
        hint: What to do about a hole, at the end of the error.
        needs_token: Whether each row must have a token outside padding.
    Raises:
        ValueError: If it has not, or is 0 elsewhere.
    """
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {tuple(input_ids.shape)}, got "
            f"{tuple(attention_mask.shape)}"
        )
    if not can_look(attention_mask):
        return
    kept = attention_mask != 0
    has_hole, is_empty = have_holes(kept), ~kept.any(dim=1)
    wrong = (has_hole | is_empty if needs_token else has_hole).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        found = "has a hole in it" if has_hole[row] else "has no token"
        raise ValueError(
            f"attention_mask must be 1 at one run of tokens a row, and 0 at padding before or after it; row {row} "
            f"{found}. {hint}"
        )


def have_holes(keep: Tensor) -> Tensor:
    """Return which rows of a bool tensor (batch, length) have something left out between what is kept, (batch,).

    >>> have_holes(torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()).tolist()
    [False, True, False]
    """
    begins = keep & ~F.pad(keep, (1, 0))[:, :-1]
    return begins.sum(dim=1) > 1


def check_prompt_mask(inputs: Tensor | None, given: Mapping[str, Any]) -> None:
    """Check the mask of a prompt: of the whole text, which beside a filled cache may be given again or in part.

    Args:
        inputs: The prompt, if it is given as the first argument of `generate`.
        given: The others.
    Raises:
        ValueError: If it is not.
    """
    mask = given.get("attention_mask")
    prompts = (given.get("inputs_embeds"), inputs, given.get("inputs"), given.get("input_ids"))
    text = next((prompt for prompt in prompts if isinstance(prompt, Tensor)), None)
    if text is not None and isinstance(mask, Tensor) and mask.shape != text.shape[:2]:
        check_attention_mask(mask, text, given.get("past_key_values"))


def kept_positions(logits_to_keep: int | Tensor, time: int) -> slice | Tensor:
    """Return the positions, of `time` in all, that logits are asked for.

    Raises:
        ValueError: If there are no such positions.
    """
    if type(logits_to_keep) is int and 0 <= logits_to_keep <= time:
        return slice(-logits_to_keep, None)
    if isinstance(logits_to_keep, Tensor) and logits_to_keep.dim() == 1 and logits_to_keep.dtype in _INTEGERS:
        there = (logits_to_keep >= -time) & (logits_to_keep < time)
        if not can_look(there) or there.all():
            return logits_to_keep
    raise ValueError(
        f"logits_to_keep must be in [0, {time}], the number of last positions and 0 for all, or indices in "
        f"[{-time}, {time - 1}] in a tensor of one dimension, got {logits_to_keep!r}"
    )


def check_nll_weights(nll_weights: Sequence[float] | None, *, has_labels: bool) -> None:
    """Check that there is something to score, and under a weight.

    Raises:
        ValueError: If not.
    """
    if nll_weights is None:
        return
    if not len(nll_weights):
        raise ValueError("nll_weights must have an ensemble weight, such as 0 for none, got []; or leave them out")
    if not has_labels:
        raise ValueError("nll_weights score labels; give labels, or leave nll_weights out")


def check_range(values: Tensor, stop: int, name: str, *, start: int = 0) -> None:
    """Check that all values are in [start, stop).

    Raises:
        ValueError: If one is not.
    """
    if can_look(values) and (wrong := (values < start) | (values >= stop)).any():
        raise ValueError(f"{name} in [{start}, {stop - 1}], got {values[wrong][0].item()}")


def can_look(tensor: Tensor) -> bool:
    """Return whether a tensor's values are here to be looked at."""
    return tensor.is_cpu and not torch.compiler.is_compiling()
