"""Clock readings that wait for the accelerator, which still works after a call from Python has returned."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch


def settled_time(device: torch.device) -> float:
    """Return the seconds of a clock once the device has finished all its work; only differences have a meaning."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def median_seconds(runs: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, float]:
    """Return the median seconds of each function.

    They take turns, so that their ratios hold on a busy machine too. There is one turn more than `rounds`, the first,
    which does not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = settled_time(device)
            run()
            if turn:
                seconds[name].append(settled_time(device) - start)
    return {name: median(times) for name, times in seconds.items()}
