"""Random numbers of a training step that differ between processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers import TrainingArguments


@contextmanager
def noise_of_this_process(args: TrainingArguments) -> Iterator[None]:
    """Draw random numbers of this process's own, from a seed that all draw; Trainer gives all the same seed."""
    if args.world_size == 1:
        yield
        return
    drawn = int(torch.randint(2**31, ()))
    seed = np.random.SeedSequence(drawn, spawn_key=(args.process_index,)).generate_state(1)
    device = args.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(int(seed[0]))
        yield
