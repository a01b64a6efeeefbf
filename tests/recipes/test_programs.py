"""Every script: it says what it does, and every settings file of its own has its names and types."""

import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from transformers import TrainingArguments

from lab.runs import parse_table
from lab.settings import parse_mapping, stated_settings
from tests.programs import ROOT

RECIPES = ROOT / "recipes"
PROGRAMS = [
    *sorted(RECIPES.glob("*.py")),
    *sorted(RECIPES.glob("tables/*.py")),
    *sorted(RECIPES.glob("benchmarks/*.py")),
    RECIPES / "demo" / "app.py",
]
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: str(one.relative_to(RECIPES)))


@cache
def names_of(program: Path) -> dict:
    return runpy.run_path(str(program), run_name="read")


def settings_files(program: Path) -> list[Path]:
    return sorted((RECIPES / "settings" / program.relative_to(RECIPES).with_suffix("")).glob("*.yaml"))


@every_program
def test_a_program_lists_its_settings(program, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(program), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(program), run_name="__main__")
    assert ended.value.code == 0
    assert "--plugins" in capsys.readouterr().out


@every_program
def test_a_program_says_what_it_does_before_its_slow_imports(program):
    done = subprocess.run([sys.executable, "-X", "importtime", program], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 3
    assert "| torch" not in done.stderr


@every_program
def test_every_settings_file_of_a_program_has_its_settings_alone(program):
    names = names_of(program)
    files = settings_files(program)
    assert "smoke" in [file.stem for file in files]
    for file in files:
        cpu = ["--use_cpu", "true"]
        if hasattr(names.get("recipe"), "SETTINGS"):
            table = parse_table(names["recipe"], arguments=[str(file), *cpu])
            assert table.rows
        elif "SETTINGS" in names:
            parse_mapping(stated_settings(*names["SETTINGS"], arguments=[str(file), *cpu]), *names["SETTINGS"])
        elif "Setup" in names:
            trained = [
                kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, TrainingArguments)
            ]
            stated_settings(names["Setup"], *trained, arguments=[str(file), *(cpu if trained else [])])
