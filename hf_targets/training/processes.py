"""The processes that `torchrun` or `accelerate launch` started together."""

import os

import torch
from accelerate import PartialState


def started_processes() -> PartialState:
    """Return the processes that were started together, those on CPUs too, of which accelerate sees one alone."""
    return PartialState(cpu=not torch.accelerator.is_available())


def needs_cpu() -> bool:
    """Return whether several processes were started where there is no accelerator; Trainer must be told then."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.accelerator.is_available()
