"""Batches of rows of different lengths."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yield the numbers of the rows of each batch, longest rows first, so that rows of a length are together.

    >>> list(by_length([3, 9, 4], batch_size=2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def padded_rows(rows: Sequence[Tensor], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows of one dimension as one batch (rows, time), padded on the right, and its mask of int64.

    >>> padded_rows([torch.tensor([1, 2]), torch.tensor([3])])
    (tensor([[1, 2],
            [3, 0]]), tensor([[1, 1],
            [1, 0]]))
    """
    batch = pad_sequence(list(rows), batch_first=True, padding_value=fill)
    lengths = torch.tensor([len(row) for row in rows])
    return batch, (torch.arange(batch.shape[1]) < lengths[:, None]).long()
