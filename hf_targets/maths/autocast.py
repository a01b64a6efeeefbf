"""Computation in the type of its tensors, whatever autocast says."""

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context in which autocast is off on a device; nothing changes on a device that has none."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()
