"""Batches of a stream: where they are is known at each, and several processes read each row of a pass once."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from torch import distributed as dist
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import IterableDataset as TorchStream

from hf_targets.maths.losses import IGNORED

logger = logging.getLogger(__name__)

RowState = tuple[dict[str, Any] | None, int, int]
"""The state of a stream before a block of rows (None: its start), the number of the block, and its rows taken."""
_START: RowState = (None, 0, 0)


@dataclass
class StreamPart(TorchStream):
    """One pass over a process's part of a stream, in batches: `(worker, state after the batch, batch)`.

    Rows are shuffled in blocks: so many are read, put in random order, and given out before others are read. A state
    is small, as a block can be read again. Random numbers of the collator depend only on the seed and the position in
    the stream.

    Args:
        stream: This process's part; workers share its shards.
        collate: Makes a batch of rows.
        seed: Numbers that are others in each process and pass.
        block_size: Rows in a block; 1 leaves them in their order.
        histories: For each worker the state to go on from. Further ones are those after the batches that follow, which
            are only collated again, for a collator that remembers batches.
        first_worker: The worker whose turn it is; those before it begin with None.
    """

    stream: IterableDataset
    collate: Callable[[list[Any]], Any]
    seed: Sequence[int]
    batch_size: int
    block_size: int
    drop_last: bool
    histories: Sequence[Sequence[RowState]]
    first_worker: int

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        if worker < self.first_worker:
            yield None
        history = self.histories[worker]
        rows = self._rows(worker, *history[0])
        num_repeated = len(history) - 1
        while batch := list(islice(rows, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            state = batch[-1][1]
            seed = np.random.SeedSequence([*self.seed, worker, *state[1:]]).generate_state(1)
            with torch.random.fork_rng([]):
                torch.default_generator.manual_seed(int(seed[0]))  # `torch.manual_seed` takes a millisecond
                made = self.collate([row for row, _ in batch])
            if num_repeated > 0:
                num_repeated -= 1
            else:
                yield worker, state, made

    def _rows(
        self, worker: int, begin: dict[str, Any] | None, number: int, taken: int
    ) -> Iterator[tuple[Any, RowState]]:
        """Yield the rows from a state on, each with the state after it."""
        forgets = why_rows_are_forgotten(self.stream)
        if begin is not None:
            self.stream.load_state_dict(begin)
        rows = iter(self.stream)
        if forgets is not None:
            _skip(rows, number * self.block_size, forgets)
        while block := list(islice(rows, self.block_size)):
            order = np.arange(len(block))
            if self.block_size > 1:
                np.random.default_rng([*self.seed, worker, number]).shuffle(order)
            for index in range(taken, len(block)):
                yield block[order[index]], (begin, number, index + 1)
            begin, number, taken = None if forgets else self.stream.state_dict(), number + 1, 0


def _skip(rows: Iterator[Any], count: int, why: str) -> None:
    if count:
        logger.warning("%d rows of the stream are read again to resume: %s", count, why)
    next(islice(rows, count, count), None)


def why_rows_are_forgotten(stream: IterableDataset) -> str | None:
    """Return why the state of a stream does not tell which rows are next, and what to do; None if it does."""
    parts = [stream._ex_iterable]
    while parts:
        part: Any = parts.pop()
        kind = type(part).__name__
        if kind == "BufferShuffledExamplesIterable" and part.buffer_size > 1:
            return (
                "it has a shuffle buffer, whose rows are not in its state. Give the stream without its buffer, and "
                "shuffle_buffer_size to the training's arguments"
            )
        if kind == "VerticallyConcatenatedMultiSourcesExamplesIterable" and get_worker_info() is not None:
            return (
                "in a data loader worker the state of concatenated streams does not fit. Set dataloader_num_workers to "
                "0, or interleave the streams"
            )
        parts += [part.ex_iterable] if hasattr(part, "ex_iterable") else getattr(part, "ex_iterables", [])
    return None


@dataclass
class StreamLoader:
    """The batches of one process, pass after pass over its part of a stream, without end.

    A pass ends for all processes together: one whose rows have come to their end gets batches without a target until
    the others' have. A collator with `set_epoch` is told each pass, and one with `num_batches_before` is given so many
    earlier batches again when the loader goes on.

    Args:
        dataset: The whole stream, of which this process reads the shards, or every so many rows, that are its own.
        collate: Makes a batch; it may be the collator with something around it.
        options: Of `DataLoader`.
    """

    dataset: IterableDataset
    collator: Any
    collate: Callable[[list[Any]], Any]
    batch_size: int
    block_size: int
    drop_last: bool
    seed: int
    rank: int
    num_processes: int
    options: dict[str, Any]

    def __post_init__(self) -> None:
        self._number, self._group = 0, None
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._histories: list[list[RowState]] = [[_START] for _ in range(max(1, self.options["num_workers"]))]
        self._first_worker, self._empty = 0, None

    @property
    def _has_begun(self) -> bool:
        return any(history != [_START] for history in self._histories)

    def __iter__(self) -> Iterator[Any]:
        if self.num_processes > 1 and self._group is None:
            self._group = dist.new_group(backend="gloo")  # no waiting for what a GPU has been given to do
        while True:
            has_rows = self._has_begun
            for batch in self._together(self._pass()):
                has_rows = True
                yield batch
            if not has_rows:
                raise ValueError(
                    "a stream must have rows, got none; look at its files, its filters and how long rows may be"
                )
            self._number += 1
            log = logger.warning if self._number == 1 and self.rank == 0 else logger.info
            log(
                "The stream has ended before max_steps, and its rows are read again (pass %d). Give it more rows or "
                "lower max_steps if each row is to be read once",
                self._number + 1,
            )
            self._begin_pass()

    def _part(self, histories: Sequence[Sequence[RowState]], first_worker: int) -> StreamPart:
        stream = split_dataset_by_node(self.dataset, self.rank, self.num_processes)
        stream.set_epoch(self._number)
        seed, sizes = (self.seed, self._number, self.rank), (self.batch_size, self.block_size, self.drop_last)
        return StreamPart(stream, self.collate, seed, *sizes, histories, first_worker)

    def _pass(self) -> Iterator[Any]:
        """Yield the batches that are left of a pass, and keep the state after each."""
        if hasattr(self.collator, "set_epoch"):
            self.collator.set_epoch(self._number)
        part = self._part(copy.deepcopy(self._histories), self._first_worker)
        # where a loader begins it draws a number, as any other does; not where it goes on
        generator = torch.Generator() if self._has_begun else None
        loader = DataLoader(part, batch_size=None, collate_fn=_as_it_is, generator=generator, **self.options)
        kept = 1 + getattr(self.collator, "num_batches_before", 0)
        for worker, state, batch in (found for found in loader if found is not None):
            self._histories[worker] = [*self._histories[worker], state][-kept:]
            self._first_worker = (worker + 1) % len(self._histories)
            yield batch

    def _together(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, and ones without a target as long as another process has some."""
        if self._group is None:
            yield from batches
            return
        while True:
            batch = next(batches, None)
            num_having = torch.tensor(int(batch is not None))
            dist.all_reduce(num_having, group=self._group)
            if not num_having:
                return
            if batch is None:  # a shuffle block is read to make one
                batch = self._empty = self._without_targets() if self._empty is None else self._empty
            yield batch

    def _without_targets(self) -> Any:
        first = next(iter(self._part([[_START]], 0)), None)
        if first is None:
            raise ValueError(
                f"each of {self.num_processes} processes must have a row of the stream, and process {self.rank} has "
                "none; give a stream of more rows, or use fewer processes"
            )
        return {
            name: torch.full_like(value, IGNORED) if "label" in name or "target" in name else value
            for name, value in first[-1].items()
        }

    def state(self) -> dict[str, Any]:
        """Return where the next batch is, as JSON has it."""
        read_by = {"processes": self.num_processes, "block_size": self.block_size}
        return {**read_by, "pass": self._number, "first_worker": self._first_worker, "histories": self._histories}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: If it is of other numbers of processes or workers, or of another size of blocks.
        """
        found = state["processes"], len(state["histories"]), state["block_size"]
        own = self.num_processes, len(self._histories), self.block_size
        if found != own:
            raise ValueError(
                "a stream goes on with the processes, data loader workers and shuffle_buffer_size it was read with, "
                f"{found}, got {own}; use these, or begin it anew with ignore_data_skip"
            )
        self._number, self._first_worker = state["pass"], state["first_worker"]
        self._histories = [[(one[0], one[1], one[2]) for one in history] for history in state["histories"]]


def _as_it_is(found: Any) -> Any:
    return found
