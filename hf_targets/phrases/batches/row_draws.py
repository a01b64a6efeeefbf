"""Rows that carry a seed of their own and the rows of earlier batches, so that a collator draws without a stream.

A dataloader makes batches ahead of the step that takes them, in any number of workers. A batch that depends on a stream
of random numbers, or on the batches made before it, is then another one after a training was broken off and resumed.
One that depends on its rows alone is the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import Dataset, Sampler

SEED_COLUMN, BEFORE_COLUMN = "row_seed", "rows_before"


class RowDraw(NamedTuple):
    """One row in one epoch.

    Attributes:
        epoch: Counted from 0.
        index: Of the row in its data set.
        before: Indices of the rows at the same position of earlier batches of this epoch, the latest batch first.
    """

    epoch: int
    index: int
    before: tuple[int, ...]


class RowDraws(Sampler[RowDraw]):
    """The rows of another sampler, in its order, as `RowDraw`.

    Args:
        order: Gives the indices of an epoch's rows.
        epoch: Called when an epoch begins; returns its number.
        stride: Rows from one batch of a process to its next: of a batch, times the processes that take turns.
        num_before: How many earlier batches a row names.
    """

    def __init__(self, order: Sampler[int], *, epoch: Callable[[], int], stride: int, num_before: int = 0) -> None:
        self.order = order
        self.epoch = epoch
        self.stride = stride
        self.num_before = num_before

    def __len__(self) -> int:
        return len(self.order)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[RowDraw]:
        epoch = self.epoch()
        if isinstance(self.order, SeedableRandomSampler):
            self.order.set_epoch(epoch)
        indices = list(self.order)
        for position, index in enumerate(indices):
            earlier = range(position - self.stride, -1, -self.stride)[: self.num_before]
            yield RowDraw(epoch, index, tuple(indices[other] for other in earlier))


class DrawnRows(Dataset):
    """A data set whose rows are asked for by a `RowDraw`, and have two columns more.

    - `row_seed`: an integer that depends on the seed, the epoch and the row alone.
    - `rows_before`: the earlier rows of the `RowDraw`, each with its own `row_seed`.

    Args:
        rows: Any data set of mappings.
        seed: Of all rows.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], seed: int) -> None:
        self.rows = rows
        self.seed = seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, draw: RowDraw) -> dict[str, Any]:
        earlier = [self._seeded(draw.epoch, index) for index in draw.before]
        return {**self._seeded(draw.epoch, draw.index), BEFORE_COLUMN: earlier}

    def _seeded(self, epoch: int, index: int) -> dict[str, Any]:
        seed = np.random.SeedSequence((self.seed, epoch, index)).generate_state(1)
        return {**self.rows[index], SEED_COLUMN: int(seed[0])}
