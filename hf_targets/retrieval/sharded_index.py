"""Shards of an index, each in a process of its own, searched as one index."""

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from hf_targets.retrieval.disk_index import DiskIndex
from hf_targets.retrieval.disk_index_builder import DiskIndexBuilder
from hf_targets.retrieval.vector_search import VectorSearch, check_search

_GONE = (EOFError, OSError)  # what a pipe raises whose other end has closed
_SECONDS_TO_END = 10

logger = logging.getLogger(__name__)


class ShardedIndex:
    """Searches shards in processes at once and merges what they find, as one index of all their vectors would.

    The numbers of a shard go on where those of the shard before end. A process that was killed is replaced. Processes
    are not forked from this one, so that a script needs `if __name__ == "__main__":`. They end with the `with` block,
    with `close`, or with this process.

    >>> with ShardedIndex.load("index") as index:  # doctest: +SKIP
    ...     model.generate(**inputs, phrases=vocabulary, phrase_index=index)

    Args:
        openers: Open each shard in its process: functions that pickle can send, without arguments.
    Raises:
        ValueError: If there is no shard, or shards differ in width, metric or fingerprint.
    """

    def __init__(self, openers: Sequence[Callable[[], VectorSearch]]) -> None:
        if not openers:
            raise ValueError("a sharded index needs a shard, got none")
        self._lock = Lock()
        self._shards = [_Shard(opener, max(1, (os.cpu_count() or 1) // len(openers))) for opener in openers]
        try:
            lengths, about = zip(*(shard.about() for shard in self._shards), strict=True)
            for number, one in enumerate(about):
                if one != about[0]:
                    raise ValueError(
                        f"shards must have one width, metric and fingerprint, got {about[0]} in shard 0 and {one} in "
                        f"shard {number}; build them alike"
                    )
        except BaseException:
            self.close()
            raise
        self.dim, self.metric, self.fingerprint = about[0]
        self._starts = np.cumsum([0, *lengths]).tolist()

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, fingerprint: Mapping[str, str] | None = None, **settings: Any
    ) -> Self:
        """Open all shards that a `DiskIndexBuilder` filled in a folder and did not merge.

        Args:
            settings: Arguments of `DiskIndex.load`.
        Raises:
            ValueError: As `DiskIndex.load` does, or if a shard is missing.
        """
        builder = DiskIndexBuilder(folder)
        if builder.filled != list(range(len(builder.filled))):
            raise ValueError(f"{folder} must have all shards from 0 on, got {builder.filled}; fill the others")
        how = {"fingerprint": fingerprint, **settings}
        return cls([partial(DiskIndex.load, builder.shard_folder(shard), **how) for shard in builder.filled])

    def __len__(self) -> int:
        return self._starts[-1]

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the `k` best scores and the numbers of their vectors, as `VectorSearch.search` does.

        Raises:
            ValueError: If `queries` is not a finite float matrix of this width, or `k` is below 1.
            RuntimeError: If a process ends and so does the one in its place, or the index is closed, as it is after
                such an error or an interrupt.
        """
        asked = check_search(queries, k, self.dim).numpy(), k
        with self._lock:
            try:
                for shard in self._shards:
                    shard.ask(asked)
                found = [shard.answer(asked) for shard in self._shards]
            except BaseException:  # an answer that is left in a pipe would be that of the next search
                self.close()
                raise
        for answer in found:
            if isinstance(answer, Exception):
                raise answer
        is_far = self.metric == "distance"
        for (scores, numbers), start in zip(found, self._starts, strict=False):
            scores[numbers < 0] = np.inf if is_far else -np.inf
            numbers[numbers >= 0] += start
        scores, numbers = (torch.from_numpy(np.concatenate(parts, axis=1)) for parts in zip(*found, strict=True))
        scores, at = scores.topk(min(k, len(self)), dim=1, largest=not is_far)
        return scores.to(queries.device), numbers.gather(1, at).to(queries.device)

    def close(self) -> None:
        """End the processes."""
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Shard:
    """The process of a shard, and the pipe to it; those of a `ProcessPoolExecutor` outlive a killed one."""

    def __init__(self, opener: Callable[[], VectorSearch], num_threads: int) -> None:
        self._given = opener, num_threads
        self._start()

    def _start(self) -> None:
        context: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
        if context.get_start_method() == "forkserver":  # it imports once for all processes, and has no threads
            context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._given), daemon=True)
        self._process.start()
        theirs.close()

    def about(self) -> tuple[int, Any]:
        """Return the number of the shard's vectors, and what shards must have in common."""
        try:
            about = self._pipe.recv()
        except _GONE as error:
            raise self._ended() from error
        if isinstance(about, Exception):
            raise about
        return about

    def ask(self, asked: tuple[np.ndarray, int]) -> None:
        """Send queries and how many to find."""
        if self._pipe.closed:
            raise RuntimeError("the index is closed; open it again")
        try:
            self._pipe.send(asked)
        except _GONE:
            self._replace()
            self._pipe.send(asked)

    def answer(self, asked: tuple[np.ndarray, int]) -> Any:
        """Return what was found, or the error of the search."""
        try:
            return self._pipe.recv()
        except _GONE:
            self._replace()
        try:
            self._pipe.send(asked)
            return self._pipe.recv()
        except _GONE as error:
            raise self._ended() from error

    def _replace(self) -> None:
        logger.warning("%s; it is replaced", self._ended())
        self.close()
        self._start()
        self.about()

    def _ended(self) -> RuntimeError:
        self._process.join(_SECONDS_TO_END)
        return RuntimeError(
            f"the process of a shard has ended (exit code {self._process.exitcode}); an error of its own stands above, "
            'and a script opens a sharded index under `if __name__ == "__main__":`'
        )

    def close(self) -> None:
        """End the process: it reads that the pipe is closed, or is killed."""
        self._pipe.close()
        self._process.join(_SECONDS_TO_END)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, opener: Callable[[], VectorSearch], num_threads: int) -> None:
    """Open a shard, and answer through the pipe until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks is interrupted, and closes the pipe
    torch.set_num_threads(num_threads)
    os.environ["OMP_NUM_THREADS"] = str(num_threads)  # FAISS reads it when the opener imports it
    try:
        index = opener()
    except Exception as error:
        pipe.send(error)
        return
    with suppress(*_GONE):
        pipe.send((len(index), (index.dim, index.metric, dict(index.fingerprint))))
        while True:
            rows, k = pipe.recv()
            try:
                pipe.send(tuple(found.numpy() for found in index.search(torch.from_numpy(rows), k)))
            except Exception as error:
                pipe.send(error)
