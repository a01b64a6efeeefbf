"""Recipes run in the process of the test, on a text that is read and evaluated in no time."""

import contextlib
import io
import runpy
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from hf_targets import load_corpus
from tests.programs import ROOT

WORDS = {"train": 2000, "validation": 300, "test": 400}


def run_recipe(name: str, *arguments: object, settings: str | Path = "smoke") -> str:
    """Run a recipe or a benchmark at the settings of that name, or of a file, and return what it printed."""
    settings = ROOT / "recipes" / "settings" / name / f"{settings}.yaml" if isinstance(settings, str) else settings
    program, printed = ROOT / "recipes" / f"{name}.py", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [str(program.relative_to(ROOT)), str(settings), *map(str, arguments)])
        patch.setattr(sys, "excepthook", sys.excepthook)
        runpy.run_path(str(program), run_name="__main__")
    torch.set_grad_enabled(True)
    return printed.getvalue()


@cache
def _folder() -> tempfile.TemporaryDirectory:
    """Write the first words of each split of the documentation; the folder goes when Python ends."""
    folder, corpus = tempfile.TemporaryDirectory(), load_corpus("documentation:topics")
    for split, num_words in WORDS.items():
        lines, left = [], num_words
        for line in "".join(corpus[split]["text"]).splitlines():
            lines.append(line)
            left -= len(line.split())
            if left <= 0:
                break
        Path(folder.name, f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def small_text() -> str:
    """Return a folder of text with some hundred words in each split."""
    return _folder().name
