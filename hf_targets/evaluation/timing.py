"""Clock readings that count the work of an accelerator, which goes on after Python has asked for it."""

import time

import torch


def settled_time(device: torch.device) -> float:
    """Return the seconds of a clock once all that was asked of the device is done; only differences mean something."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
