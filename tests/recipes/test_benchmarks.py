import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(name: str) -> str:
    """Run a benchmark in this process at its smoke settings, and return what it printed."""
    settings = ROOT / "recipes" / "settings" / "benchmarks" / name / "smoke.yaml"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [f"recipes/benchmarks/{name}.py", str(settings)])
        patch.setattr(sys, "excepthook", sys.excepthook)
        runpy.run_path(str(ROOT / "recipes" / "benchmarks" / f"{name}.py"), run_name="__main__")
    torch.set_grad_enabled(True)
    return printed.getvalue()


def test_the_curve_benchmark_prints_its_tables():
    printed = run("curves")
    assert "A training step, L = 16: plain" in printed and "Sampling, L = 16: plain" in printed
    assert "| modulation | parameters | ms | x adaLN |" in printed
    assert re.search(r"\| first_hitting \|  \| \d", printed)
