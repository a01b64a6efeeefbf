"""Runs: stretches of text in the rows of a batch that an LSTM reads one by one, without padding and without a break."""

from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence


@dataclass(frozen=True)
class Runs:
    """The text of a batch (rows, time) as runs, packed as `torch.lstm` reads them: longest run first, step by step.

    A run begins at the first token of a row, and wherever `position_ids` do not go up by one from the token before, as
    in packed rows. Padding belongs to no run. The first run of a row goes on with the row's state; the others begin
    with 0.

    Attributes:
        shape: Of the batch, (rows, time).
        positions: (tokens,), the index in the flattened batch of each token of the packed order.
        run_of: (tokens,), the run of each.
        batch_sizes: (steps,), the number of runs that have a token in each step; on the CPU.
        row_of: (runs,), the row of each run.
        is_first: (runs,), whether it is the first of its row.
        last_of: (rows,), the last run of each row; -1 for a row of padding.
    """

    shape: tuple[int, int]
    positions: Tensor
    run_of: Tensor
    batch_sizes: Tensor
    row_of: Tensor
    is_first: Tensor
    last_of: Tensor

    @classmethod
    def of(cls, keep: Tensor, position_ids: Tensor | None) -> Self | None:
        """Return the runs of a batch; None if each row is one run from its first position to its last.

        Args:
            keep: (rows, time), true at text, false at padding.
            position_ids: (rows, time) or (1, time); None: no row has a second run.
        """
        num_rows, time = keep.shape
        kept = keep.flatten().nonzero().flatten()
        rows, last_of = kept // time, torch.full((num_rows,), -1, device=keep.device)
        if not len(kept):
            return cls((num_rows, time), kept, kept, kept.cpu(), kept, kept.bool(), last_of)
        changes = rows[1:] != rows[:-1]
        breaks = changes
        if position_ids is not None:
            breaks = changes | (position_ids.expand(num_rows, time).flatten()[kept].diff() != 1)
        begins, is_first = F.pad(breaks, (1, 0), value=True), F.pad(changes, (1, 0), value=True)
        if len(kept) == keep.numel() and torch.equal(begins, is_first):
            return None
        number = begins.cumsum(0) - 1
        packed = pack_sequence(list(kept.split(number.bincount().tolist())), enforce_sorted=False)
        order, rank = cast(Tensor, packed.sorted_indices), cast(Tensor, packed.unsorted_indices)
        sizes = packed.batch_sizes
        is_last = F.pad(changes, (0, 1), value=True)
        last_of[rows[is_last]] = rank[number[is_last]]
        run_of = torch.arange(len(kept)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return cls(
            (num_rows, time), packed.data, run_of.to(keep.device), sizes, rows[begins][order], is_first[begins][order],
            last_of,
        )  # fmt: skip

    def pack(self, values: Tensor) -> Tensor:
        """Return the text (tokens, d) of values (rows, time, d), in packed order."""
        return values.flatten(0, 1)[self.positions]

    def unpack(self, packed: Tensor) -> Tensor:
        """Return packed values (tokens, d) as (rows, time, d), 0 at padding."""
        values = packed.new_zeros(self.shape[0] * self.shape[1], packed.shape[1])
        return values.index_copy(0, self.positions, packed).unflatten(0, self.shape)

    def begin(self, state: Tensor) -> Tensor:
        """Return the state (runs, d) with which each run begins, for that of the rows (rows, d)."""
        return state[self.row_of] * self.is_first[:, None]

    def end(self, found: Tensor, before: Tensor) -> Tensor:
        """Return the state (rows, d) after the last run of each row, for that after all runs (runs, d).

        Args:
            before: (rows, d), which rows of padding keep.
        """
        return torch.where(self.last_of[:, None] < 0, before, found[self.last_of.clamp(min=0)])
