"""What the tests of all trainers share: a short training's settings, what it left, and runs in several processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

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


def run_processes(script: str, folder: Path, *arguments: object, processes: int = 2) -> None:
    """Run a script, whose first argument is the folder, as so many processes of one training; `trainer` is its name.

    The processes leave without the end that Python makes: a thread of gloo may still hold a tensor then, which aborts
    its process now and then.
    """
    folder.mkdir(exist_ok=True)
    file, root = folder / "script.py", str(Path(__file__).parents[1])
    file.write_text(f"{script}\nimport os\ntrainer.accelerator.wait_for_everyone()\nos._exit(0)\n")
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [*launch, str(file), str(folder), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
