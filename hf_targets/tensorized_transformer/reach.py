"""The positions that each position of a text may read: those of its own text, in a window that ends at itself."""

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_targets.backbones.inputs import can_look


def reach_of(
    text: Tensor, size: int, num_cached: int, attention_mask: Tensor | None, position_ids: Tensor | None
) -> Tensor:
    """Return which positions of its window each position reads, (1 or batch, time, size); the last is the position.

    Padding is not read, nor is what lies before the first position, nor another text of a packed row.

    Args:
        text: (batch, time) or (batch, time, d).
        num_cached: Number of positions before the text that a cache holds.
        attention_mask: (batch, num_cached + time), 0 at padding.
        position_ids: (batch, time) or (1, time). A text begins wherever they do not go up by one.
    """
    time, device = text.shape[1], text.device
    length = size - 1 + time
    keep = (torch.arange(length, device=device) >= size - 1 - num_cached)[None]
    if attention_mask is not None:
        given = attention_mask[:, -length:].to(device) != 0
        keep = keep & F.pad(given, (length - given.shape[1], 0))
    reach = keep.unfold(1, size, 1)
    if position_ids is None or time == 1:  # a step of generation continues its text
        return reach
    texts = texts_of(keep[:, size - 1 :].expand(len(text), -1), position_ids.expand(len(text), -1))
    return reach & (F.pad(texts, (size - 1, 0)).unfold(1, size, 1) == texts[..., None])


def texts_of(keep: Tensor, position_ids: Tensor) -> Tensor:
    """Return the number of the text to which each position of a row belongs, (batch, time), counted from 0.

    A text begins wherever the positions do not go up by one from those of the token before. Padding is passed over.

    Args:
        keep: (batch, time), true at text, false at padding.
        position_ids: (batch, time).
    """
    index = torch.arange(keep.shape[1], device=keep.device).expand_as(keep)
    last = F.pad(torch.where(keep, index, -1).cummax(dim=1).values[:, :-1], (1, 0), value=-1)
    follows = position_ids == position_ids.gather(1, last.clamp(min=0)) + 1
    return (keep & (last >= 0) & ~follows).cumsum(dim=1)


def check_segments_of(text: Tensor, size: int, attention_mask: Tensor | None, position_ids: Tensor | None) -> None:
    """Check that a text fills segments, each from its beginning, and that none of them has two texts in it.

    Raises:
        ValueError: If its length is not a multiple of `size`, padding comes before text, or positions restart inside a
            segment (values are checked on a CPU only).
    """
    time = text.shape[1]
    if time % size:
        raise ValueError(
            f"with paper_leaky=True a text is read in segments of segment_length={size}, so its length must be a "
            f"multiple of {size}, got {time}; choose such a block_size, or pad the text on the right and mask the "
            "padding"
        )
    keep = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device)
    if attention_mask is not None:
        keep = (attention_mask != 0).expand_as(keep)
    segments = keep.unflatten(1, (-1, size))
    if can_look(keep) and (segments[..., 1:] & ~segments[..., :-1]).any():
        raise ValueError(
            f"with paper_leaky=True each segment of {size} positions begins with text, and attention_mask has padding "
            "before text in one; pad on the right (tokenizer.padding_side = 'right')"
        )
    if position_ids is None or not can_look(position_ids):
        return
    texts = texts_of(keep, position_ids.expand_as(keep)).unflatten(1, (-1, size))
    if (texts[..., 0] != texts[..., -1]).any():
        raise ValueError(
            f"with paper_leaky=True all of a segment of {size} positions is one text, and position_ids restart inside "
            "of one; leave out position_ids, or do not pack several texts into a row"
        )
