"""A process that has imported what programs need, and runs each program in a fork of itself.

It reads one job a line from its input and writes one line of exit codes to its output. `tests.programs` talks to it.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import sys

Job = dict


def serve() -> tuple[Job, int] | None:
    """Take jobs until there are no more; return in each fork with its job and its number among the job's forks."""
    for line in sys.stdin:
        job = json.loads(line)
        running = []
        for index in range(len(job["environments"])):
            running.append(os.fork())
            if running[-1] == 0:
                return job, index
        print(json.dumps(wait(running)), flush=True)
    return None


def wait(running: list[int]) -> list[int]:
    """Return the exit codes of all processes, a signal's number negative; when one fails the others are killed."""
    codes: dict[int, int] = {}
    while len(codes) < len(running):
        ended, status = os.wait()
        codes[ended] = os.waitstatus_to_exitcode(status)
        if codes[ended] != 0:
            for process in set(running) - codes.keys():
                os.kill(process, signal.SIGKILL)
    return [codes[process] for process in running]


def become(job: Job, index: int) -> None:
    """Run a job's program as if Python had just been started for it."""
    for number, file in ((0, os.devnull), (1, job["outputs"][index]), (2, job["errors"][index])):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(job["environments"][index])
    os.chdir(job["folder"])
    sys.argv = job["command"]
    search = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.path.dirname(sys.argv[0]), *filter(None, search)]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    gc.disable()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # so that a fork neither copies nor frees what all share
    gc.enable()
    forked = serve()
    if forked:
        become(*forked)
