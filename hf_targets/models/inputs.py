"""What a call of a model may ask for beside its text: masks that fit it, and logits of positions that it has."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

_INTEGERS = (torch.int64, torch.int32)


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
    """Return the positions, of `time` in all, that logits are asked for; indices are looked at on a CPU alone.

    Raises:
        ValueError: If there are no such positions.
    """
    if type(logits_to_keep) is int and 0 <= logits_to_keep <= time:
        return slice(-logits_to_keep, None)
    if isinstance(logits_to_keep, Tensor) and logits_to_keep.dim() == 1 and logits_to_keep.dtype in _INTEGERS:
        there = (logits_to_keep >= -time) & (logits_to_keep < time)
        if not _can_look(there) or there.all():
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
    """Check that all values are in [start, stop); on a CPU alone, as elsewhere the look would wait for the device.

    Raises:
        ValueError: If one is not.
    """
    if _can_look(values) and (wrong := (values < start) | (values >= stop)).any():
        raise ValueError(f"{name} in [{start}, {stop - 1}], got {values[wrong][0].item()}")


def _can_look(tensor: Tensor) -> bool:
    return tensor.is_cpu and not torch.compiler.is_compiling()
