"""Batches of about as many tokens each, of rows of similar length."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of row numbers, each with at most `max_tokens` tokens once it is padded; every row is in one batch.

    The size of a batch is its number of rows times the longest of their lengths, as fairseq's `--max-tokens` has it.
    Rows are sorted by length, and cut into batches. With `shuffle` rows of equal length change places and batches come
    in random order, by seed and epoch; all epochs have the same number of batches.

    It is the `batch_sampler` of a `DataLoader`. `accelerate` deals the batches out to the processes in turn; if some
    process would have one batch less, it gets one of the first batches again. `accelerate` and the `Trainer` call
    `set_epoch`, but for one case: in the epoch that a run on several processes resumes, they do not reach this sampler
    through `skip_first_batches`. Call `set_epoch` on the sampler itself there, as our trainers of pairs do.

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
        if self.lengths.ndim != 1 or not len(self.lengths) or self.lengths.min() < 1:
            raise ValueError(
                f"lengths must be one number of 1 or more for each row, and there must be a row, got {lengths!r:.80}"
            )
        if (longest := self.lengths.max()) > max_tokens:
            raise ValueError(
                f"a batch must have room for every row, and {(self.lengths > max_tokens).sum()} rows have more than "
                f"max_tokens={max_tokens}, up to {longest} (row {self.lengths.argmax()}); raise max_tokens, or remove "
                f"or cut long texts"
            )
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, got {seed}")
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
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
