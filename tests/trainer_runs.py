"""What the tests of all trainers share: a short training's settings, what it left, and runs in several processes."""

import socket
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from tests.programs import EVERYTHING, server

# What Transformers calls it, by whose name methods and arguments begin: the second before 5.23.
CHECKPOINTING = "activation_checkpointing"
if not hasattr(TrainingArguments, CHECKPOINTING):
    CHECKPOINTING = "gradient_checkpointing"

SHORT: dict[str, Any] = {
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
}
"""Arguments of a training of four steps."""


def weights(model) -> dict[str, torch.Tensor]:
    """Return a model's tensors as they are now."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def with_dropout(model, share: float = 0.2):
    """Return the model with dropout wherever it has any, for laws about random numbers in training."""
    holders = [model.config, *(module for module in model.modules() if not isinstance(module, nn.Dropout))]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
    for holder in holders:
        for name in [name for name, value in vars(holder).items() if name.endswith("dropout") and value == 0.0]:
            setattr(holder, name, share)
    return model


def losses(trainer) -> list[dict[str, float]]:
    """Return what a trainer has logged of its losses."""
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], **tolerance: float) -> None:
    """Assert that two models' tensors are the same."""
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **tolerance)


_END = """
import os, sys
from accelerate import PartialState

PartialState().wait_for_everyone()
sys.stdout.flush()
os._exit(0)
"""


def run_processes(script: str, folder: Path, *arguments: object, processes: int = 2) -> list[str]:
    """Run a script, whose first argument is the folder, as so many processes of one training; return what they print.

    The processes leave without the end that Python makes: a thread of gloo may still hold a tensor then, which aborts
    its process now and then.
    """
    folder.mkdir(exist_ok=True)
    file = folder / "script.py"
    file.write_text(f"{script}\n{_END}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(processes)}
    common["CUDA_VISIBLE_DEVICES"] = ""  # they cannot share one GPU
    ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    done = server(*EVERYTHING).run(file, folder, *arguments, variables=ranks)
    told = "\n".join(process.stderr[-3000:] for process in done if process.returncode)
    assert all(process.returncode == 0 for process in done), told
    return [process.stdout for process in done]
