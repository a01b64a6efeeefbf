"""The canvas that generation starts from: given tokens, padding, and masked positions to fill."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from hf_targets.backbones.inputs import check_ids, check_padding


@dataclass(frozen=True)
class Canvas:
    """A batch of texts with masked positions to fill.

    Attributes:
        ids: The mask id where `masked` is true; given tokens or padding at other positions.
        masked: True at the positions to fill. A mask id in padding is not one of them.
        attention_mask: 0 at padding, 1 at other positions; None without padding.
    """

    ids: Int[Tensor, "batch length"]
    masked: Bool[Tensor, "batch length"]
    attention_mask: Int[Tensor, "batch length"] | None = None


def blank_canvas(batch_size: int, length: int, mask_token_id: int, device: torch.device) -> Canvas:
    """Return a canvas with all positions masked.

    Raises:
        ValueError: If `batch_size` or `length` is not an integer of 1 or more.
    """
    _check_count("batch_size", batch_size)
    _check_count("max_length", length)
    ids = torch.full((batch_size, length), mask_token_id, dtype=torch.long, device=device)
    return Canvas(ids, torch.ones_like(ids, dtype=torch.bool))


def given_canvas(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    *,
    max_length: int | None,
    mask_token_id: int,
    vocab_size: int,
    device: torch.device,
) -> Canvas:
    """Return a canvas of given tokens (batch, length), with masks appended on the right up to `max_length`.

    Args:
        attention_mask: (batch, length), 0 at padding, which may be at both ends of a row.
    Raises:
        ValueError: If an id is out of range, the attention mask has a wrong shape, value or a hole, `input_ids` are
            longer than `max_length`, masks would be appended after padding, or there is nothing to fill.
    """
    _check_ids(input_ids, vocab_size)
    keep = _checked_keep(attention_mask, input_ids).to(device)
    ids = input_ids.to(device=device, dtype=torch.long)
    length = ids.shape[1]
    if max_length is not None:
        _check_count("max_length", max_length)
        if max_length < length:
            raise ValueError(
                f"max_length includes the given tokens and must be at least their number, {length}, got {max_length}; "
                "raise it, or cut input_ids"
            )
        if max_length > length:
            pads_right = keep.any(dim=1) & ~keep[:, -1:].all(dim=1)
            if pads_right.any():
                raise ValueError(
                    f"max_length={max_length} appends masks after the {length} given tokens, so no row may end in "
                    f"padding, and row {int(pads_right.nonzero()[0])} does; pad on the left (padding_side='left')"
                )
            ids = F.pad(ids, (0, max_length - length), value=mask_token_id)
            keep = F.pad(keep, (0, max_length - length), value=True)
    masked = (ids == mask_token_id) & keep
    if not masked.any():
        raise ValueError(
            f"there is nothing to generate: input_ids have no mask token (id {mask_token_id}) outside padding; put it "
            "at the positions to fill, or give a max_length above their length to continue them"
        )
    return Canvas(ids, masked, None if keep.all() else keep.long())


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be an integer, 1 or more, got {value}")


def _check_ids(input_ids: Tensor, vocab_size: int) -> None:
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.shape[0] == 0:
        shape = tuple(input_ids.shape) if isinstance(input_ids, Tensor) else type(input_ids).__name__
        raise ValueError(
            f"input_ids must be a tensor of token ids (batch, length) with at least one row, got {shape}; for texts "
            "without given tokens leave them out, and give batch_size"
        )
    if input_ids.dtype == torch.bool or input_ids.is_floating_point() or input_ids.is_complex():
        raise ValueError(f"input_ids must be token ids, integers, got {input_ids.dtype}; convert them with .long()")
    if input_ids.numel():
        check_ids(input_ids.cpu(), vocab_size, "input_ids")


def _checked_keep(attention_mask: Tensor | None, input_ids: Tensor) -> Bool[Tensor, "batch length"]:
    if attention_mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    if not isinstance(attention_mask, Tensor):
        raise ValueError(f"attention_mask must be a tensor (batch, length), got {type(attention_mask).__name__}")
    hint = "A token to fill in is attended to: give it the mask id and leave its attention at 1"
    check_padding(attention_mask.cpu(), input_ids, hint=hint)  # once a call, so that the wait is no loss
    keep = attention_mask != 0
    if not (keep == attention_mask).all():
        raise ValueError("attention_mask must hold 1 for tokens and 0 for padding, and nothing else")
    return keep
