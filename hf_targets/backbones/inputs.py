"""Checks of a call's arguments: the text, labels and masks that fit it, and the positions whose logits are requested.

Values of tensors are checked only on a CPU: on another device the check would wait for that device.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.weight_access import num_rows
from hf_targets.data.tokenization import special_token_ids
from hf_targets.maths.losses import IGNORED

_INTEGERS = (torch.int64, torch.int32)
_NOT_FOR_MASKED = ("shift_labels", "logits_to_keep", "past_key_values", "ensemble_weight", "nll_weights")


def check_count(num_items_in_batch: Tensor | int | None, *, has_labels: bool) -> None:
    """Raise a ValueError if a count of targets comes without labels.

    With `label_smoothing_factor` or `compute_loss_func`, Trainer removes the labels but not the count, and computes its
    own loss from the logits, which would train only the prediction of the next token.
    """
    if num_items_in_batch is not None and not has_labels:
        raise ValueError(
            "num_items_in_batch needs labels: with label_smoothing_factor or compute_loss_func Trainer replaces this "
            "model's loss. Smooth labels with the model's own trainer of hf_targets or its configuration, where one "
            "can; else leave label_smoothing_factor out. For a custom loss of the logits set "
            "model.accepts_loss_kwargs=False before you create a transformers.Trainer"
        )


def check_shapes(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, *, prefix: str = "", **labels: Tensor | None
) -> Tensor:
    """Return the input, (batch, time) or (batch, time, d).

    Args:
        prefix: What the names of the input begin with, for the errors.
    Raises:
        ValueError: If it is missing or empty, or labels have another shape or are not integers.
    """
    given = inputs_embeds if input_ids is None else input_ids
    if given is None or given.dim() < 2 or 0 in given.shape[:2]:
        shape = None if given is None else tuple(given.shape)
        raise ValueError(
            f"{prefix}input_ids or {prefix}inputs_embeds must be (batch, time) and hold at least one token, got {shape}"
        )
    for name, ids in labels.items():
        if ids is not None and ids.shape != given.shape[:2]:
            raise ValueError(
                f"{name} must have the shape of {prefix}input_ids, {tuple(given.shape[:2])}, got {tuple(ids.shape)}"
            )
    check_integers(**{f"{prefix}input_ids": input_ids}, **labels)
    return given


def check_integers(**named: Tensor | None) -> None:
    """Raise a ValueError if what is given is no tensor of integers; None is allowed."""
    for name, ids in named.items():
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        if ids is not None and kind not in _INTEGERS:
            raise ValueError(
                f"{name} must be token ids, integers, got {kind}; convert them with torch.as_tensor(...).long()"
            )


def check_ids(ids: Tensor, vocab_size: int, name: str, ignored: int | None = None, hint: str = "") -> None:
    """Raise a ValueError if an id is outside the vocabulary.

    Args:
        name: The name of the argument, for the error.
        ignored: A value that is allowed too, such as the label -100.
        hint: Advice for the end of the error; by default about the tokenizer.
    """
    if not can_look(ids):
        return
    lowest, highest = torch.stack(ids.aminmax()).tolist()
    if lowest >= 0 and highest < vocab_size:
        return
    wrong = ids[((ids < 0) | (ids >= vocab_size)) & (ids != ignored if ignored is not None else True)]
    if wrong.numel():
        hint = hint or "use the model's own tokenizer, or resize_token_embeddings"
        raise ValueError(
            f"{name} must be in [0, {vocab_size - 1}], the model's vocabulary, got {wrong[0].item()}; {hint}"
        )


def check_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if a tokenizer cannot be a model's own.

    It has more ids than the model embeds (a special token may lie beyond, as Gemma 3's for images), or none of the
    model's end tokens, by its generation configuration, is among its special tokens. A tokenizer that agrees in both is
    taken for the model's: a model without heads or phrases does not keep the name of its pieces.
    """
    rows, special = num_rows(model.get_input_embeddings()), special_token_ids(tokenizer)
    known = getattr(model.generation_config, "eos_token_id", None)
    ends = [id_ for id_ in ([] if known is None else torch.as_tensor(known).flatten().tolist()) if id_ < rows]
    size = max(tokenizer.vocab_size, *(id_ + 1 for id_ in tokenizer.added_tokens_decoder if id_ not in special), 0)
    if size > rows or (ends and special.isdisjoint(ends)):
        told = f"{size} ids for {rows} embeddings" if size > rows else f"no special token {ends}, the model's end"
        raise ValueError(
            f"text must be read by the model's own tokenizer, got one that has {told}; load both alike"
            + ("" if size > rows else ", or tell a new model its generation_config.eos_token_id")
        )


def check_text(
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    attention_mask: Any,
    position_ids: Tensor | None,
    token_type_ids: Tensor | None,
    vocab_size: int,
    width: int,
    *,
    cache: Cache | None = None,
    hint: str = "give the tokenizer single texts, not pairs",
) -> Tensor:
    """Check what layers of ours read, and return the text: `input_ids` (batch, time) or `inputs_embeds`.

    Args:
        vocab_size, width: Of the embeddings.
        hint: What to do about a second segment, for the error.
    Raises:
        ValueError: If shapes do not fit, a segment id is not 0, or an id is outside the vocabulary.
    """
    text = check_shapes(input_ids, inputs_embeds)
    check_attention_mask(attention_mask, text, cache)
    check_position_shape(position_ids, text)
    check_segments(token_type_ids, hint)
    if input_ids is not None:
        check_ids(input_ids, vocab_size, "input_ids")
    elif text.shape[2:] != (width,):
        raise ValueError(f"inputs_embeds must be (batch, time, {width}), got {tuple(text.shape)}")
    return text


def check_row_mask(attention_mask: Tensor | None, what: str = "0 at padding") -> None:
    """Raise a ValueError if a mask has other axes than (batch, time)."""
    if attention_mask is not None and attention_mask.dim() != 2:
        raise ValueError(f"attention_mask must be (batch, time), {what}, got {tuple(attention_mask.shape)}")


def check_masked_call(
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    labels: Tensor | None,
    num_items_in_batch: Tensor | int | None,
    given: Mapping[str, Any],
    *,
    vocab_size: int,
) -> Tensor:
    """Check the arguments of a masked language model, and return the text: `input_ids` or `inputs_embeds`.

    Args:
        labels: (batch, time), the token at each masked position; -100 elsewhere.
        given: The other arguments of the call.
        vocab_size: Rows of the output matrix.
    Raises:
        ValueError: If an argument is one of models that write text, there is a count of targets but no labels, the text
            is missing or empty, labels have another shape than the text, or an id is outside the vocabulary.
    """
    if wrong := [name for name in _NOT_FOR_MASKED if given.get(name) is not None]:
        raise ValueError(f"{wrong[0]} is an argument of models that write text, not of masked ones; leave it out")
    check_count(num_items_in_batch, has_labels=labels is not None)
    text = check_shapes(input_ids, inputs_embeds, labels=labels)
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


def check_segments(token_type_ids: Tensor | None, hint: str = "give the tokenizer single texts, not pairs") -> None:
    """Raise a ValueError, with a hint at its end, if a segment id is not 0, for a model that has no second segment."""
    if token_type_ids is not None and can_look(token_type_ids) and token_type_ids.any():
        raise ValueError(
            f"token_type_ids must be 0, as this model has no second segment, got {int(token_type_ids.max())}; {hint}"
        )


def check_attention_mask(attention_mask: Any, text: Tensor, cache: Cache | None, name: str = "attention_mask") -> None:
    """Raise a ValueError if a mask does not cover every cached position and every position of the text.

    Masks of four dimensions, and objects that are not tensors, are for the backbone and are not checked. Nor are masks
    for a cache that is not dynamic: it has more slots than positions, and the mask may cover all slots.

    Args:
        text: `input_ids` (batch, time), or `inputs_embeds` (batch, time, d).
    """
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() == 4:
        return
    if cache is not None and not isinstance(cache, DynamicCache):
        return
    past = 0 if cache is None else cache.get_seq_length()
    batch, time = text.shape[:2]
    if attention_mask.shape != (batch, past + time):
        held = f" with the {past} positions in the cache" if past else ""
        way_out = "use the tokenizer's mask, or none if nothing is padded"
        if cache is not None and not past and attention_mask.shape[1] > time:
            way_out += "; to generate, call model.eval(): gradient checkpointing in training leaves the cache empty"
        raise ValueError(
            f"{name} must be (batch, time), {(batch, past + time)}{held}, got {tuple(attention_mask.shape)}; {way_out}"
        )


def check_position_shape(position_ids: Tensor | None, text: Tensor) -> None:
    """Raise a ValueError if positions are not one a token; those of several kinds a token (3-D) are the backbone's."""
    rows, time = text.shape[:2]
    if position_ids is not None and position_ids.dim() != 3 and position_ids.shape not in ((rows, time), (1, time)):
        raise ValueError(f"position_ids must be (batch, time), {(rows, time)}, got {tuple(position_ids.shape)}")


def check_padding(attention_mask: Tensor, input_ids: Tensor, *, hint: str, needs_token: bool = False) -> None:
    """Raise a ValueError if a mask has another shape than `input_ids`, or is 0 elsewhere than at the ends of its rows.

    Args:
        attention_mask: (batch, length), 0 at padding.
        hint: What to do about a hole, at the end of the error.
        needs_token: Whether each row must have a token outside padding.
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
            f"attention_mask must be 1 at one run of tokens a row, 0 at padding; row {row} {found}. {hint}"
        )


def have_holes(keep: Tensor) -> Tensor:
    """Return which rows of a bool tensor (batch, length) have something left out between what is kept, (batch,).

    >>> have_holes(torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()).tolist()
    [False, True, False]
    """
    begins = keep & ~F.pad(keep, (1, 0))[:, :-1]
    return begins.sum(dim=1) > 1


def check_prompt_mask(inputs: Tensor | None, given: Mapping[str, Any]) -> None:
    """Raise a ValueError if a prompt is empty, or a mask covers neither it nor the cached positions followed by it.

    Args:
        inputs: The prompt, if it is the first positional argument of `generate`.
        given: The keyword arguments of `generate`.
    """
    mask = given.get("attention_mask")
    prompts = (given.get("inputs_embeds"), inputs, given.get("inputs"), given.get("input_ids"))
    text = next((prompt for prompt in prompts if isinstance(prompt, Tensor)), None)
    if text is None:
        return
    check_shapes(None, text)
    if isinstance(mask, Tensor) and mask.shape != text.shape[:2]:
        check_attention_mask(mask, text, given.get("past_key_values"))


def kept_positions(logits_to_keep: int | Tensor, time: int) -> slice | Tensor:
    """Return the positions for which logits are requested, as an index into `time` positions.

    Raises:
        ValueError: If `logits_to_keep` is out of range, or neither an integer nor a tensor of indices.
    """
    if isinstance(logits_to_keep, int) and 0 <= logits_to_keep <= time:
        return slice(-logits_to_keep, None)
    if isinstance(logits_to_keep, Tensor) and logits_to_keep.dtype in _INTEGERS:
        valid = (logits_to_keep >= -time) & (logits_to_keep < time)
        if not can_look(valid) or valid.all():
            return logits_to_keep
    raise ValueError(
        f"logits_to_keep must be the number of last positions, in [0, {time}] and 0 for all, or a tensor of indices in "
        f"[{-time}, {time - 1}], got {logits_to_keep!r}"
    )


def check_nll_weights(nll_weights: Sequence[float] | None, *, has_labels: bool) -> None:
    """Raise a ValueError if `nll_weights` are given and empty, or come without labels."""
    if nll_weights is not None and not (len(nll_weights) and has_labels):
        raise ValueError(f"nll_weights must be one weight or more, beside labels, got {list(nll_weights)}")


def check_range(values: Tensor, stop: int, name: str, *, start: int = 0) -> None:
    """Raise a ValueError, which begins with a name such as "ids must be", if a value is not in [start, stop)."""
    if can_look(values) and (wrong := (values < start) | (values >= stop)).any():
        raise ValueError(f"{name} in [{start}, {stop - 1}], got {values[wrong][0].item()}")


def can_look(tensor: Tensor) -> bool:
    """Return whether a tensor's values can be read at once: it is on the CPU, and nothing traces code."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def check_kept_ids(config: Any, new_num_tokens: int | None, *names: str) -> None:
    """Raise a ValueError if a resized vocabulary drops an id that a configuration names; None: it is not resized."""
    for name in names:
        number = getattr(config, name)
        if new_num_tokens is not None and number is not None and number >= max(new_num_tokens, 1):
            raise ValueError(f"the vocabulary must keep {name}={number}, got {new_num_tokens} tokens")
