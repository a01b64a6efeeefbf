import runpy
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest
from transformers import TrainingArguments

from hf_targets import (
    BlockSettings,
    ComparisonSettings,
    ExperimentSettings,
    LoraSettings,
    ModelSizeSettings,
    NewModelSettings,
    SeedSettings,
    TextSettings,
    parse_settings,
)
from hf_targets.training.settings_help import settings_files

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
PROGRAMS = [*RECIPES, *sorted((ROOT / "recipes" / "benchmarks").glob("*.py"))]
SHARED = (
    *(TextSettings, BlockSettings, SeedSettings, ExperimentSettings, ComparisonSettings, LoraSettings),
    *(ModelSizeSettings, NewModelSettings),
)
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)


@cache
def names_of(program: Path) -> dict:
    return runpy.run_path(str(program), run_name="read")


def classes_of(program: Path) -> list[type]:
    """Return the settings class of a program, and its class of training arguments if it has one."""
    names = names_of(program)
    trains = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, TrainingArguments)]
    return [names["Setup"], *trains]


def call(program: Path, *arguments: str) -> int:
    """Run a program in this process, and return its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", [str(program), *arguments])
        patch.setattr(sys, "excepthook", sys.excepthook)
        runpy.run_path(str(program), run_name="__main__")
    return ended.value.code


@every_program
def test_a_program_without_arguments_does_nothing_and_says_how_to_start(program, capsys):
    assert call(program) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert (names_of(program)["__doc__"] or "").startswith(told.err.splitlines()[0])
    files = settings_files(program)
    assert files and all(f"  {file}" in told.err for file in files)
    assert f"start with: python {program} {next(file for file in files if file.stem == 'smoke')}" in told.err


@every_program
def test_help_has_one_short_line_for_each_setting(program, capsys):
    assert call(program, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    own = [entry.name for kind in classes_of(program) for entry in fields(kind) if entry.init]
    own = [name for name in own if name not in {entry.name for entry in fields(TrainingArguments)}]
    assert [sum(line.startswith((f"  --{name} ", f"  --{name}\n")) for line in lines) for name in own] == [1] * len(own)
    assert max(map(len, lines)) <= 120 and len(lines) <= len(own) + 26


@every_program
def test_every_settings_file_has_settings_of_its_program_alone(program):
    for file in settings_files(program):
        classes = classes_of(program)
        arguments = ["--use_cpu", "true"] if len(classes) > 1 else []
        setup = parse_settings(*classes, arguments=[str(file), *arguments])[0]
        assert is_dataclass(setup)


@every_program
def test_a_shared_setting_has_one_help_text_which_a_program_may_add_to(program):
    setup = names_of(program)["Setup"]
    told = {entry.name: entry.metadata.get("help", "") for entry in fields(setup)}
    for kind in SHARED:
        for entry in fields(kind) if issubclass(setup, kind) else ():
            assert told[entry.name].startswith(entry.metadata["help"]), entry.name


@pytest.mark.parametrize("program", RECIPES, ids=lambda program: program.stem)
def test_the_settings_file_of_another_recipe_is_refused(program):
    (other, *_) = [file for file in RECIPES if file != program]
    settings = settings_files(other)[0]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match="has settings of another program"):
        patch.setattr(sys, "argv", [str(program), str(settings)])
        patch.setattr(sys, "excepthook", sys.excepthook)
        runpy.run_path(str(program), run_name="__main__")
