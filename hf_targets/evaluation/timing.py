"""Clock readings that wait for the accelerator, which still works after a call from Python has returned."""

import time

import torch


def settled_time(device: torch.device) -> float:
    """Return the seconds of a clock once the device has finished all its work; only differences have a meaning."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
