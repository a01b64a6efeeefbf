"""Training rows with a seed of their own and the rows of earlier batches, so that a resumed run has the same batches.

A dataloader makes batches ahead, in any number of workers. Only if a batch depends on nothing but its rows does a
resumed run get the batches of an uninterrupted one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import Dataset, Sampler

SEED_COLUMN, BEFORE_COLUMN = "row_seed", "rows_before"


class RowDraw(NamedTuple):
    """The index of a row, the epoch, and the rows of earlier batches.

    Attributes:
        epoch: The number of the epoch, from 0.
        index: The index of the row in its data set.
        before: The indices of the rows at the same position of earlier batches in this epoch, the latest batch first.
    """

    epoch: int
    index: int
    before: tuple[int, ...]


class RowDraws(Sampler[RowDraw]):
    """A sampler that gives the rows of another sampler, in its order, as `RowDraw`.

    Args:
        order: Gives the indices of an epoch's rows.
        epoch: Called when an epoch begins; returns its number, or None for the first.
        stride: The number of rows between the starts of two successive batches of a process: the rows of a batch, times
            the number of processes that receive batches alternately.
        num_before: The largest number of earlier batches in a `RowDraw`.
    """

    def __init__(
        self, order: Sampler[int], *, epoch: Callable[[], int | None], stride: int, num_before: int = 0
    ) -> None:
        self.order = order
        self.epoch = epoch
        self.stride = stride
        self.num_before = num_before

    def __len__(self) -> int:
        return len(self.order)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[RowDraw]:
        epoch = self.epoch() or 0
        if isinstance(self.order, SeedableRandomSampler):
            self.order.set_epoch(epoch)
        indices = list(self.order)
        for position, index in enumerate(indices):
            earlier = range(position - self.stride, -1, -self.stride)[: self.num_before]
            yield RowDraw(epoch, index, tuple(indices[other] for other in earlier))


class DrawnRows(Dataset):
    """A data set that is indexed by a `RowDraw`, and whose rows have two more columns.

    - `row_seed`: an integer that depends only on the seed, the epoch and the row.
    - `rows_before`: the earlier rows of the `RowDraw`, each with its own `row_seed`.

    Args:
        rows: Any data set of mappings.
        seed: The seed from which the seeds of all rows are made.
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
