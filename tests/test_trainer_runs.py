import pytest

from tests.trainer_runs import run_processes

SCRIPT = """
import atexit, os, sys
from types import SimpleNamespace

atexit.register(os.abort)  # as a thread of gloo may do then
assert sys.argv[2] == "good"
trainer = SimpleNamespace(accelerator=SimpleNamespace(wait_for_everyone=lambda: None))
"""


def test_what_aborts_when_python_ends_does_not_fail_a_run_that_is_done(tmp_path):
    run_processes(SCRIPT, tmp_path, "good", processes=1)


def test_a_run_that_fails_is_told(tmp_path):
    with pytest.raises(AssertionError, match="AssertionError"):
        run_processes(SCRIPT, tmp_path, "bad", processes=1)
