"""Processes of a training as `accelerate launch` starts them with a configuration of recipes/accelerate, on CPUs."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed.run
from accelerate.commands.launch import launch_command, launch_command_parser
from accelerate.state import PartialState
from accelerate.utils import DeepSpeedPlugin, DistributedType

from tests.programs import ROOT, SECONDS

WHOLE_PRECISION = "--mixed_precision", "no"  # the configurations have bfloat16


def _config_file(configuration: str) -> tuple[str, str]:
    return "--config_file", str(ROOT / "recipes" / "accelerate" / f"{configuration}.yaml")


def launched_variables(configuration: str) -> dict[str, str]:
    """Return what `accelerate launch` adds to the environment of the two processes that it lets torchrun start."""
    added: dict[str, str] = {}

    def run(arguments: Any) -> None:
        assert arguments.nproc_per_node == "2"
        added.update({name: value for name, value in os.environ.items() if before.get(name) != value})

    before = dict(os.environ)
    arguments = launch_command_parser().parse_args([*_config_file(configuration), *WHOLE_PRECISION, "script.py"])
    with mock.patch.object(torch.distributed.run, "run", run):
        launch_command(arguments)
    return added


@contextmanager
def launched(configuration: str) -> Iterator[None]:
    """Make this process, one of two, what a configuration makes of it; its weights are sharded however small.

    accelerate runs plain data parallelism on a CPU, whatever is asked for, and says nothing. For FSDP2 it is therefore
    let believe that processes have an accelerator each.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"DS_ACCELERATOR": "cpu"}))
        stack.enter_context(mock.patch.dict(os.environ, launched_variables(configuration)))
        if "ACCELERATE_USE_FSDP" in os.environ:
            stack.enter_context(_believed_accelerators())
        if "ACCELERATE_USE_DEEPSPEED" in os.environ:
            stack.enter_context(_small_weights_partitioned())
        yield


@contextmanager
def _believed_accelerators() -> Iterator[None]:
    original = PartialState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    with mock.patch.object(PartialState, "__init__", init):
        yield


@contextmanager
def _small_weights_partitioned() -> Iterator[None]:
    import deepspeed

    original = DeepSpeedPlugin.__post_init__

    def init(self: Any) -> None:
        original(self)
        self.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"] = 0

    compiled: Any = deepspeed.ops.__compatible_ops__  # what is in it takes most of a minute
    with mock.patch.object(DeepSpeedPlugin, "__post_init__", init), mock.patch.dict(compiled, deepspeed_shm_comm=False):
        yield


def launch_on_two_nodes(script: str, folder: Path) -> None:
    """Run a script, whose argument is the folder, as two machines would: two launchers, each of one process."""
    file = folder / "script.py"
    file.write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "--main_process_ip", "127.0.0.1", "--main_process_port", str(free.getsockname()[1])
    given = [*_config_file("two_nodes"), *WHOLE_PRECISION, "--num_processes", "2", *address]
    command = [sys.executable, "-m", "accelerate.commands.launch", *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    nodes = [
        subprocess.Popen([*command, "--machine_rank", str(rank), str(file), str(folder)], env=environment, cwd=ROOT)
        for rank in range(2)
    ]
    try:
        assert [node.wait(SECONDS) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.terminate()
