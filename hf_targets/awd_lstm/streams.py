"""A text as one stream of tokens, cut into rows that are read side by side, segment by segment."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from hf_targets.data.token_rows import NUM_WORDS
from hf_targets.maths.losses import IGNORED

Segment = tuple[int, int, int]
"""Where a segment begins and ends in the rows, and the group of rows."""

SHORTEST, SPREAD, SHARE_HALVED = 5, 5.0, 0.05
"""Of segments: the least tokens, the standard deviation of their number, and how often they are half as long."""


@dataclass(frozen=True)
class TextStream:
    """A text without breaks.

    Attributes:
        ids: (tokens,).
        targets: (tokens,), the token after each; -100 where it is no target.
        num_words: How many words begin in the targets; None if the data does not tell.
    """

    ids: np.ndarray
    targets: np.ndarray
    num_words: int | None

    @classmethod
    def of_blocks(cls, blocks: Iterable[Any], name: str) -> Self:
        """Return the text that blocks were cut from, as `pack_blocks` cuts them.

        Args:
            name: Of the data, for the error.
        Raises:
            ValueError: If a block does not begin with the last token of the one before.
        """
        if blocks is None:
            raise ValueError(f"there is no {name} data; give the trainer a data set of blocks")
        if not isinstance(blocks, Dataset):
            blocks = Dataset.from_list([*blocks])
        ids, labels, last = [], [], None
        has_mask = "attention_mask" in blocks.column_names
        for index, block in enumerate(blocks.with_format("numpy")):
            keep = np.asarray(block["attention_mask"]) != 0 if has_mask else slice(None)  # pyright: ignore
            tokens, targets = (np.asarray(block[column])[keep] for column in ("input_ids", "labels"))  # pyright: ignore
            if not len(tokens) or (last is not None and tokens[0] != last):
                found = (
                    f"it begins with {tokens[0]}, and the one before ends with {last}" if len(tokens) else "it is empty"
                )
                raise ValueError(
                    f"the {name} data must be one text, each block beginning with the last token of the one before, "
                    f"and block {index} does not: {found}; make them with pack_blocks, and keep their order"
                )
            ids.append(tokens[:-1])
            labels.append(targets[1:])
            last = tokens[-1]
        words = sum(blocks[NUM_WORDS]) if NUM_WORDS in blocks.column_names else None
        return cls(np.concatenate(ids), np.concatenate(labels), words)


class StreamRows(TorchDataset):
    """A text cut into rows of the same length. Positions after its end, in the last rows, are no targets.

    Args:
        num_rows: Rows that have text.
        groups: For each group of rows, which a process reads at once, their numbers. A number from `num_rows` on is of
            a row without a target.
    Raises:
        ValueError: If the text has fewer tokens than rows.
    """

    def __init__(self, stream: TextStream, num_rows: int, groups: list[range]) -> None:
        num_tokens = len(stream.ids)
        if num_tokens < num_rows:
            raise ValueError(
                f"a text of {num_tokens} tokens to predict cannot be read in {num_rows} rows at once; give a longer "
                "text, or lower the batch size"
            )
        self.length = -(-num_tokens // num_rows)
        rows = max(num_rows, *(group.stop for group in groups))
        missing = (0, rows * self.length - num_tokens)
        self._ids = torch.from_numpy(np.pad(stream.ids, missing)).view(rows, self.length)
        self._targets = torch.from_numpy(np.pad(stream.targets, missing, constant_values=IGNORED)).view(rows, -1)
        self._groups = groups
        self._num_words = stream.num_words

    def __getitem__(self, segment: Segment) -> dict[str, Any]:
        """Return a segment of a group: `input_ids` and `labels` (rows, tokens), the label that of the next token.

        `segment` has the number of the group, and whether it is the first segment of its rows. `num_words`, if the data
        tells, is of the whole text, in the first row.
        """
        begin, end, group = segment
        rows, part = self._groups[group], slice(begin, end)
        found: dict[str, Any] = {
            "input_ids": self._ids[rows.start : rows.stop, part],
            "labels": self._targets[rows.start : rows.stop, part],
            "segment": {"group": group, "begins": begin == 0},
        }
        if self._num_words is not None:
            words = torch.zeros(len(rows), dtype=torch.long)
            words[0] = self._num_words if begin == 0 and rows.start == 0 else 0
            found[NUM_WORDS] = words
        return found


class SegmentSampler(Sampler[list[Segment]]):
    """The segments of all groups, in the order of the text: each segment of all groups before the next.

    Args:
        lengths: Of the segments; those of each epoch are the same in another order.
        num_groups: Groups of rows.
        seed: Of the orders; None: the segments keep their order.
    """

    def __init__(self, lengths: list[int], num_groups: int, seed: int | None) -> None:
        self.lengths, self.num_groups, self.seed, self.epoch = lengths, num_groups, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch, from 0 on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths) * self.num_groups

    def __iter__(self) -> Iterator[list[Segment]]:
        lengths = np.asarray(self.lengths)
        if self.seed is not None:
            lengths = np.random.default_rng([self.seed, self.epoch]).permutation(lengths)
        ends = lengths.cumsum().tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            yield from ([(begin, end, group)] for group in range(self.num_groups))


def segment_lengths(num_tokens: int, bptt: int, seed: int | None) -> list[int]:
    """Return the lengths of segments that make up so many tokens.

    Args:
        bptt: Their mean length, mostly.
        seed: Draws each length from N(bptt, 5), or in 5% of the cases from N(bptt / 2, 5), at least 5; None: all but
            the last have the length `bptt`.
    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", section 4.1; the published program.

    >>> segment_lengths(20, 8, None)
    [8, 8, 4]
    >>> sum(segment_lengths(1000, 70, 0))
    1000
    """
    generator, lengths, left = None if seed is None else np.random.default_rng(seed), [], num_tokens
    while left:
        length = bptt
        if generator is not None:
            mean = bptt / 2 if generator.random() < SHARE_HALVED else bptt
            length = max(SHORTEST, int(generator.normal(mean, SPREAD)))
        lengths.append(min(length, left))
        left -= lengths[-1]
    return lengths
