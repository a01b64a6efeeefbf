"""Run a program in a process of its own that need not import torch and Transformers first.

A server imports them once, in seconds, and each program runs in a fork of it, in a fraction of a second. A program
whose imports are what is tested, or whose variables are read at import (`HF_HOME`, `HF_ENDPOINT`), needs a server of
its own or a Python of its own. Hashes of strings are others there than in the process of the tests.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("datasets", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2")
EVERYTHING = (*LIBRARIES, "matplotlib.pyplot", "tests.everything")
SECONDS = 600


class ForkServer:
    """A process that has imported `modules`, with `variables` in the environment (None: without), and runs programs."""

    def __init__(self, modules: Sequence[str], variables: Mapping[str, str | None] | None = None) -> None:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        fixed = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"}
        environment = {**os.environ, **fixed, **(variables or {})}
        self.environment = {name: value for name, value in environment.items() if value is not None}
        command = [sys.executable, str(ROOT / "tests" / "fork_server.py"), *modules]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=self.environment, start_new_session=True, **pipes)
        atexit.register(self.close)

    def close(self) -> None:
        """End the server and what it runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def run(
        self,
        program: str | Path,
        *arguments: object,
        folder: Path = ROOT,
        variables: Sequence[Mapping[str, str]] = ({},),
    ) -> list[CompletedProcess[str]]:
        """Run a program, a file or code, in as many processes as there are `variables` to add to its environment.

        Raises: TimeoutError if one of them has not ended after ten minutes.
        """
        with tempfile.TemporaryDirectory() as name:
            if isinstance(program, str):
                code, program = program, Path(name) / "program.py"
                program.write_text(code, encoding="utf-8")
            outputs, errors = ([f"{name}/{kind}-{i}" for i in range(len(variables))] for kind in ("out", "err"))
            command = [str(program), *map(str, arguments)]
            environments = [{**self.environment, **added} for added in variables]
            job = {"command": command, "folder": str(folder), "environments": environments}
            codes = self._ask({**job, "outputs": outputs, "errors": errors})
            texts = [
                [Path(file).read_text(encoding="utf-8") for file in pair] for pair in zip(outputs, errors, strict=True)
            ]
        return [CompletedProcess(command, code, *text) for code, text in zip(codes, texts, strict=True)]

    def _ask(self, job: dict) -> list[int]:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(job), file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            self.close()
            raise TimeoutError(f"{job['command']} has not ended after {SECONDS} s")
        return json.loads(self.process.stdout.readline())


@cache
def server(*modules: str) -> ForkServer:
    """Return this process's server that has imported `modules`."""
    return ForkServer(modules)


def run_program(
    program: str | Path, *arguments: object, folder: Path = ROOT, **variables: str
) -> CompletedProcess[str]:
    """Run a program, a file or code, where torch, Transformers and `hf_targets` are imported; return how it ended."""
    (done,) = server(*EVERYTHING).run(program, *arguments, folder=folder, variables=[variables])
    return done
