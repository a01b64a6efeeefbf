"""How much memory a call, or a step of a training, needs: the most that tensors hold at once beside what was there."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def added_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Return the most bytes that tensors of a call hold at once on a device; what was there before does not count.

    On a CPU torch's profiler tells each block that its allocator gives out or takes back; buffers that libraries such
    as oneDNN allocate themselves are not seen. The peak of a process is no such measure: it holds freed memory too.
    """
    if device.type != "cpu":
        torch.accelerator.memory.reset_peak_memory_stats(device)
        before = torch.accelerator.memory.memory_allocated(device)
        run()
        return torch.accelerator.memory.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    told: Any = profiler.profiler
    blocks = [event for event in told.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for block in sorted(blocks, key=lambda event: event.start_ns()):
        held += block.nbytes()
        most = max(most, held)
    return most


def step_memory(trainer: Any) -> float:
    """Return the memory that a step needs besides weights and gradients, over that of a batch's logits."""
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.training_step(trainer.model, dict(batch))  # gradients stay, as they are of the model's size
    added = added_bytes(lambda: trainer.training_step(trainer.model, dict(batch)), trainer.args.device)
    dtype = torch.bfloat16 if trainer.args.bf16 else trainer.model.dtype
    return added / (batch["input_ids"].numel() * trainer.model.config.vocab_size * dtype.itemsize)
