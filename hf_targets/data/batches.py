"""Batches of rows of different lengths: by number of rows, or of about as many tokens each."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler


def by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yield the numbers of the rows of each batch, longest rows first, so that rows of a length are together.

    >>> list(by_length([3, 9, 4], batch_size=2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def padded_rows(rows: Sequence[Tensor], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows of one dimension as one batch (rows, time), padded on the right, and its mask of int64."""
    batch = pad_sequence(list(rows), batch_first=True, padding_value=fill)
    lengths = torch.tensor([len(row) for row in rows])
    return batch, (torch.arange(batch.shape[1]) < lengths[:, None]).long()


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of row numbers, each with at most `max_tokens` tokens once it is padded; every row is in one batch.

    The size of a batch is its number of rows times the longest of their lengths, as fairseq's `--max-tokens` has it.
    Rows are sorted by length, and cut into batches. With `shuffle` rows of equal length change places and batches come
    in random order, by seed and epoch; all epochs have the same number of batches.

    It is the `batch_sampler` of a `DataLoader`. `accelerate` calls `set_epoch`, but not in the epoch that a run on
    several processes resumes (`EpochCallback`).

    Args:
        lengths: Tokens of each row, 1 or more; of a pair, those of its longer side (`pair_lengths`).
        max_tokens: Tokens in a batch, with padding.
        shuffle: Whether order changes with the epoch. Otherwise the longest rows come first.
        seed: Of the order; 0 or more.
    Raises:
        ValueError: If there are no rows, a length is below 1, or a row has more than `max_tokens`.

    >>> list(TokenBatchSampler([2, 5, 3, 2], max_tokens=6, shuffle=False, seed=0))
    [[1], [2, 0], [3]]
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, max_tokens: int, *, shuffle: bool, seed: int) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if not len(self.lengths) or self.lengths.min() < 1:
            raise ValueError(f"there must be a row, and each length must be 1 or more, got {lengths!r:.80}")
        if (longest := self.lengths.max()) > max_tokens:
            raise ValueError(
                f"a batch must have room for every row, and row {self.lengths.argmax()} has {longest} tokens; raise "
                f"max_tokens={max_tokens}, or remove or cut long texts"
            )
        self.max_tokens, self.shuffle, self.seed, self.epoch = max_tokens, shuffle, seed, 0
        self._ends = self._batch_ends()

    @property
    def sampler(self) -> "TokenBatchSampler":
        """Itself, as accelerate looks for `set_epoch` there if the batches are shared among processes."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch, which the next iteration takes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[list[int]]:
        rows = np.arange(len(self.lengths))
        order = np.arange(len(self._ends))
        if self.shuffle:
            generator = np.random.default_rng([self.seed, self.epoch])
            generator.shuffle(rows)
            generator.shuffle(order)
        rows = rows[np.argsort(-self.lengths[rows], kind="stable")]
        batches = np.split(rows, self._ends[:-1])
        for number in order:
            yield batches[number].tolist()

    def _batch_ends(self) -> np.ndarray:
        """Return the end of each batch in the rows from long to short, (batches,): its first row is the longest."""
        lengths = -np.sort(-self.lengths)
        ends = [0]
        while ends[-1] < len(lengths):
            ends.append(min(len(lengths), ends[-1] + self.max_tokens // int(lengths[ends[-1]])))
        return np.array(ends[1:])
