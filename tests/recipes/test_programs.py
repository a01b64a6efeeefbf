"""Every program of recipes/: what it says without arguments, and that its settings files are its own."""

import runpy
import sys
from pathlib import Path

import pytest
from transformers import training_args

from lab import runs
from lab import settings as lab_settings
from lab.runs import Table
from tests.programs import ROOT

RECIPES = ROOT / "recipes"
PROGRAMS = sorted(path for folder in ("", "tables", "benchmarks") for path in (RECIPES / folder).glob("*.py"))
FILES = [
    (program, file)
    for program in PROGRAMS
    for file in sorted((RECIPES / "settings" / program.relative_to(RECIPES).with_suffix("")).glob("*.yaml"))
]
NEEDS = {"distill_translations": ("--teacher", "somewhere")}
"""What is given on the command line alone."""


class Parsed(Exception):
    """Ends a program once its settings are parsed; has the arguments and the result of the parser."""


def ending(parse):
    """Return a parser that ends the program which calls it."""

    def parsed(*arguments, **options):
        found = parse(*arguments, **options)
        if sys._getframe(1).f_globals["__name__"] == "__main__":
            raise Parsed(arguments, found)
        return found

    return parsed


def call(program: Path, *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(program), *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        for module, name in (
            (lab_settings, "parse_settings"),
            (lab_settings, "stated_settings"),
            (runs, "parse_table"),
        ):
            patch.setattr(module, name, ending(getattr(module, name)))
        runpy.run_path(str(program), run_name="__main__")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.relative_to(RECIPES)))
def test_a_program_without_arguments_says_what_it_does_and_how_to_start(program, capsys):
    with pytest.raises(SystemExit) as ended:
        call(program)
    told = capsys.readouterr().out
    assert ended.value.code == 2 and f"recipes/{program.relative_to(RECIPES)}" in told
    assert (RECIPES / "settings" / program.relative_to(RECIPES).with_suffix("") / "smoke.yaml").is_file()


@pytest.mark.parametrize(("program", "file"), FILES, ids=lambda path: path.stem)
def test_a_settings_file_has_settings_of_its_program_alone(program, file, monkeypatch):
    monkeypatch.setattr(training_args, "is_torch_bf16_gpu_available", lambda: True)  # of files for a GPU
    with pytest.raises(Parsed) as ended:
        call(program, file, *NEEDS.get(program.stem, ()))
    (recipe, *_), table = ended.value.args
    if isinstance(table, Table):
        for row in table.rows.values():
            own = {name: value for name, value in row.items() if name != "finetunes"}
            lab_settings.parse_mapping({**table.settings, **own, "output_dir": "runs"}, *recipe.SETTINGS)
