"""Executes the notebooks and compares what they say with the outputs that they keep; `--store` keeps the new ones.

    python .ci/notebooks.py [--store] [notebooks/NAME.ipynb ...]

Numbers may differ by a twentieth. Seconds, paths and addresses are not compared, nor what a cell says that is tagged
`varies`, for it draws samples that rounding changes. Of figures the number and the size are compared.
"""

import difflib
import math
import os
import re
import struct
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
MODEL, PYTHON = ROOT / "models" / "smollm2-135m", (3, 11)
"""What the outputs are made with: the model, and the Python whose documentation is read."""
QUIET = {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore:IProgress not found", "DS_ACCELERATOR": "cpu"}
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?(?!\w)")
_MASKED = re.compile(r"\d+(?:\.\d+)? (?:s|ms|seconds)\b|(?:/[\w.-]+){2,}|0x[0-9a-f]+")


def said(cell: Any) -> list[str]:
    """Return the lines that a cell prints or shows, and a line for each figure."""
    lines: list[str] = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" in data:
            lines.append("a figure of {} x {}".format(*struct.unpack(">II", b64decode(data["image/png"])[16:24])))
        else:
            text = output.get("text", data.get("text/html", data.get("text/plain", "")))
            lines += [_MASKED.sub("...", line) for line in text.splitlines()]
    return lines


def agree(old: str, new: str) -> bool:
    """Return whether two lines are the same but for numbers that are near to each other."""
    if _NUMBER.sub("0", old) != _NUMBER.sub("0", new):
        return False
    pairs = zip(*([float(one.replace(",", "")) for one in _NUMBER.findall(line)] for line in (old, new)), strict=True)
    return all(math.isclose(*pair, rel_tol=0.05, abs_tol=0.02) for pair in pairs)


def failures(cell: Any) -> list[str]:
    """Return the error of a cell, or what it prints on stderr: warnings, of which there should be none."""
    wrong = [one for one in cell.get("outputs", ()) if "ename" in one or one.get("name") == "stderr"]
    return [one.get("text") or f"{one.ename}: {one.evalue}" for one in wrong]


def differences(old: Any, new: Any, *, compared: bool = True) -> list[str]:
    """Return what is wrong with the cells of an executed notebook, each cell's after its name."""
    found: list[str] = []
    for before, after in zip(old.cells, new.cells, strict=True):
        lines, others = said(before), said(after)
        if "varies" in before.metadata.get("tags", ()):
            lines, others = ["..."] * bool(lines), ["..."] * bool(others)
        wrong = failures(after)
        if compared and not wrong and (len(lines) != len(others) or not all(map(agree, lines, others))):
            wrong = [line for line in difflib.unified_diff(lines, others, "stored", "new", "", "", 0, "") if line]
        found += [f"  {before.id}: {line}" for line in wrong if not line.startswith("@@")]
    return found


def main(arguments: list[str]) -> int:
    """Execute the notebooks; return how many of them say something else."""
    store, num_wrong = "--store" in arguments, 0
    os.environ |= QUIET
    for path in [Path(one) for one in arguments if one != "--store"] or sorted(ROOT.glob("notebooks/*.ipynb")):
        old, new = (nbformat.read(path, as_version=4) for _ in range(2))
        settings: Any = {"timeout": 600, "record_timing": False, "resources": {"metadata": {"path": path.parent}}}
        NotebookClient(new, allow_errors=True, extra_arguments=["--log-level=ERROR"], **settings).execute()
        new.metadata = old.metadata  # without the version of this Python
        same = sys.version_info[:2] == PYTHON and (MODEL.is_dir() or MODEL.name not in path.read_text("utf-8"))
        found = differences(old, new, compared=same and not store)
        told = "wrong" if found else "stored" if store else "as stored" if same else "executed, not compared"
        print("\n".join([f"{path.name}: {told}", *found]), flush=True)
        num_wrong += bool(found)
        if store and not found:
            nbformat.write(new, path)
    return num_wrong


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
