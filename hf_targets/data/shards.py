"""Work that is cut into numbered shards, done one after the other, or by Ray on one machine or many."""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hf_targets.data.progress import progress
from hf_targets.extras import require

_ADDRESS, _SECONDS = "RAY_ADDRESS", 10.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_QUIET["RAY_BACKEND_LOG_LEVEL"] = "fatal"

Result = TypeVar("Result")
Work = Callable[[int], Result]


def run_shards(
    work: Work[Result],
    sizes: Mapping[int, int],
    *,
    workers: int | None = None,
    description: str,
    unit: str,
    keeps_state: bool = False,
    gpus: float = 0.0,
) -> Iterator[Result]:
    """Yield what `work` returns for each shard, as it is done; a bar shows the rate and the time that is left.

    With workers it is Ray Data that calls `work`, on this machine or on the cluster that the environment variable
    `RAY_ADDRESS` names, whose machines have this package and share a disk. A worker that dies is replaced, and its
    shard is done again, however often that happens: Ray prints each death, and `work` must allow it.

    Args:
        work: Takes the number of a shard; an object that can be pickled, if there are workers.
        sizes: How much there is to do in each shard, by its number.
        workers: Processes, one CPU each; None: this process does all.
        description, unit: Of the bar.
        keeps_state: Whether a worker is an actor, which keeps a model that `work` loads; others start faster.
        gpus: Of each worker.
    Raises:
        ValueError: If `workers` is below 1.
        ConnectionError: If no cluster answers at `RAY_ADDRESS`.
        ImportError: If there are workers, and Ray is not installed.
        Exception: Of `work`; the shards that were done stay done.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be 1 or more, or None for this process, got {workers}")
    with progress(sum(sizes.values()), description, unit=unit) as bar:
        here = ((shard, work(shard)) for shard in sizes)
        for shard, result in here if workers is None or not sizes else _in_ray(work, sizes, workers, keeps_state, gpus):
            bar.update(sizes[shard])
            yield result


def _in_ray(
    work: Work[Any], sizes: Mapping[int, int], workers: int, keeps_state: bool, gpus: float
) -> Iterator[tuple[int, Any]]:
    ray = connect_ray(workers)
    data, held = require("ray.data", extra="scale"), ray.put(work)
    context = data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    size = min(workers, len(sizes))
    shards = data.from_items([{"shard": shard} for shard in sizes], override_num_blocks=len(sizes))
    given: dict[str, Any] = {"batch_size": 1, "num_cpus": 1, "num_gpus": gpus}
    if keeps_state:
        given["fn_constructor_args"] = ([held],)
        done = shards.map_batches(_Worker, compute=data.ActorPoolStrategy(size=size), **given)
    else:
        done = shards.map_batches(_work_once, compute=data.TaskPoolStrategy(size=size), fn_args=([held],), **given)
    for row in done.iter_rows():  # tasks of dead workers are done again, for ever: the default of Ray Data
        result = pickle.loads(row["result"])
        if isinstance(result, Exception):
            raise result
        yield int(row["shard"]), result


class _Worker:
    """An actor: a process that does shards with one copy of the work, which keeps the models that it loads."""

    def __init__(self, held: list[Any]) -> None:
        self._work = require("ray", extra="scale").get(held[0])

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        return _answer(self._work, batch)


def _work_once(batch: Mapping[str, Any], held: list[Any]) -> dict[str, list[Any]]:
    """Do a shard in a process that has been used before for other work, and so need not import anything."""
    return _answer(_latest(held[0]), batch)


@lru_cache(maxsize=1)
def _latest(held: Any) -> Any:
    return require("ray", extra="scale").get(held)


def _answer(work: Work[Any], batch: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the pickled result of a shard, or the error of its work: Ray would do a failing shard again."""
    shard = int(batch["shard"][0])
    try:
        result = pickle.dumps(work(shard))
    except Exception as error:
        try:
            result = pickle.dumps(error)
            pickle.loads(result)
        except Exception:  # an error of many arguments, or with a lock
            result = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return {"shard": [shard], "result": [result]}


def connect_ray(workers: int) -> Any:
    """Return Ray, started on this machine with so many workers, or connected to the cluster at `RAY_ADDRESS`.

    It stays as it is if it was started before.

    Raises:
        ConnectionError: If no cluster answers.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    ray = require("ray", extra="scale")
    if ray.is_initialized():
        return ray
    address = os.environ.get(_ADDRESS)
    local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address in (None, "local") else {}
    try:
        if address and (parts := urlsplit(address if "://" in address else f"ray://{address}")).port:
            socket.create_connection((parts.hostname or "", parts.port), timeout=_SECONDS).close()  # Ray takes minutes
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **local)
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"{_ADDRESS} must name a Ray cluster that runs, and {address!r} does not answer ({error}); start one with "
            f"`ray start --head`, or unset {_ADDRESS} for workers on this machine"
        ) from error
    return ray
