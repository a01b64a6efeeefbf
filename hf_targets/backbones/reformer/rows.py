"""Rows of any length for a Reformer, which reads whole chunks: moved to the left, grouped by length and padded."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import ReformerConfig


@dataclass(frozen=True)
class ChunkRule:
    """Which lengths a Reformer can read.

    Attributes:
        shortest: A text of at most so many tokens is read whole, without chunks.
        multiple: A longer text has a length that is a multiple of this.
        longest: The most positions there are.
        only: The one length that can be read; None: any up to `longest`.
    """

    shortest: int
    multiple: int
    longest: int
    only: int | None

    @classmethod
    def of(cls, config: ReformerConfig, *, training: bool) -> "ChunkRule":
        """Return the rule of a configuration; in training, axial positions are a grid that must be full."""
        lengths = {"lsh": config.lsh_attn_chunk_length, "local": config.local_attn_chunk_length}
        used = [lengths[kind] for kind in set(config.attn_layers)]
        grid = math.prod(config.axial_pos_shape) if config.axial_pos_embds else None
        longest = config.max_position_embeddings if grid is None else min(grid, config.max_position_embeddings)
        return cls(min(used), math.lcm(*used), longest, grid if training else None)

    def padded(self, length: int) -> int:
        """Return the length to which a text is padded; raise ValueError if there are not so many positions."""
        padded = length if length <= self.shortest else -(-length // self.multiple) * self.multiple
        longest = self.longest if self.only is None else self.only
        if padded > longest:
            raise ValueError(
                f"a text of {length} tokens fills {padded} positions in chunks, and this Reformer has {longest}; "
                "give a shorter text"
            )
        return padded if self.only is None else self.only


@dataclass(frozen=True)
class RowGroup:
    """Rows that are read together, each moved to the left and padded on the right.

    Attributes:
        rows: (rows,), their indices in the batch.
        order: (rows, width), the position of each token in its row of the batch.
        keep: (rows, length), true at tokens; the length may be larger than the width.
    """

    rows: Tensor
    order: Tensor
    keep: Tensor

    def take(self, batch: Tensor) -> Tensor:
        """Return the rows (rows, length, ...) of a batch (batch, time, ...), with zeros at padding."""
        rows = batch[self.rows[:, None], self.order]
        missing = self.keep.shape[1] - rows.shape[1]
        padded = F.pad(rows, (0, 0) * (rows.ndim - 2) + (0, missing))
        return padded.masked_fill(~self.keep.reshape(*self.keep.shape, *[1] * (rows.ndim - 2)), 0)

    def put(self, batch: Tensor, rows: Tensor) -> Tensor:
        """Return a batch (batch, time, d) in which these rows are (rows, length, d), without their padding."""
        width = self.order.shape[1]
        kept = rows[:, :width].masked_fill(~self.keep[:, :width, None], 0)
        return batch.index_put((self.rows[:, None], self.order), kept)


def row_groups(attention_mask: Tensor | None, text: Tensor, rule: ChunkRule) -> Iterator[RowGroup]:
    """Yield groups of rows of the same length after padding, so that a row is read as it would be alone.

    Args:
        attention_mask: (batch, time), 0 at padding on either side.
        text: (batch, time) or (batch, time, d), of which only the shape is read.
    """
    num_rows, time = text.shape[:2]
    device = text.device
    keep = torch.ones(num_rows, time, device=device) if attention_mask is None else attention_mask
    keep = keep.bool()
    counts = keep.sum(1).clamp(min=1)  # a row of padding alone is read as one token
    order = (~keep).long().argsort(dim=1, stable=True)
    lengths = [(count, rule.padded(count)) for count in counts.tolist()]
    # short texts are all read without chunks, whatever their lengths
    keys = [0 if rule.only is None and count <= rule.shortest else padded for count, padded in lengths]
    for key in sorted(set(keys)):
        chosen = [row for row, other in enumerate(keys) if other == key]
        rows = torch.tensor(chosen, device=device)
        length = key or max(lengths[row][0] for row in chosen)
        kept = torch.arange(length, device=device) < counts[rows, None]
        yield RowGroup(rows, order[rows, : min(length, time)], kept)
