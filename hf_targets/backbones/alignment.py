"""Positions counted within their own sequence, to tell which future-token predictions exist and which are targets."""

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_targets.maths.losses import IGNORED


def steps_into_sequence(
    batch: int,
    time: int,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    device: torch.device,
    *,
    before: Tensor | None = None,
) -> Tensor:
    """Return, for each position, the number of earlier positions of the same sequence; -1 at padding.

    A sequence begins at the first position, after padding, and wherever `position_ids` do not increase by one, as in
    packed rows. A prediction made n positions earlier belongs to the same sequence if this number is at least n.

    Args:
        attention_mask: (batch, time), nonzero where attended; masks of other shapes are ignored.
        position_ids: (batch, time) or (1, time).
        before: (batch,), the steps of the last cached position; None: nothing is cached.
    """
    steps = torch.zeros(batch, 1, dtype=torch.long, device=device) if before is None else before[:, None] + 1
    if time == 1:  # a step of cached decoding continues the sequence
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            return torch.where(attention_mask[:, -1:].bool(), steps, -1)
        return steps
    index = torch.arange(time, device=device).expand(batch, time)
    first_begins = torch.zeros(batch, 1, dtype=torch.bool, device=device)  # the first position may continue a cache
    begins = first_begins
    attended = torch.ones_like(index, dtype=torch.bool)
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        attended = attention_mask[:, -time:].bool()
        begins = begins | torch.cat([first_begins, ~attended[:, :-1]], dim=1)
    if position_ids is not None and position_ids.dim() == 2:
        follows = torch.diff(position_ids.expand(batch, time), dim=1) == 1
        begins = begins | torch.cat([first_begins, ~follows], dim=1)
    sequence = begins.cumsum(dim=1)  # numbers of sequences; ONNX has no `cummax` of their first positions
    firsts = torch.cat([-steps, torch.zeros_like(index), first_begins.long()], dim=1)
    firsts = firsts.scatter(1, torch.where(begins, sequence, time + 1), index)  # the last column is read by none
    first = firsts.gather(1, sequence)
    return torch.where(attended, index - first, -1)


def mask_first_tokens(labels: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
    """Return labels (batch, time) with -100 for padding and for the first token of every sequence but the first column.

    Only padding or another document precedes that token, and nothing predicts it.
    """
    steps = steps_into_sequence(labels.shape[0], labels.shape[1], attention_mask, position_ids, labels.device)
    return torch.cat([labels[:, :1], labels[:, 1:].masked_fill(steps[:, 1:] < 1, IGNORED)], dim=1)


def next_targets(
    labels: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    *,
    shifted: Tensor | None = None,
) -> Tensor:
    """Return the target of the hidden state at each position, (batch, time); -100 where there is no target.

    These are `shifted`, or else the labels shifted.
    """
    if shifted is not None:
        return shifted
    assert labels is not None
    return F.pad(mask_first_tokens(labels, attention_mask, position_ids)[:, 1:], (0, 1), value=IGNORED)
