import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hf_targets import MultiTokenTrainingArguments
from hf_targets.training.settings import parse, parse_mapping, read_settings

ROOT = Path(__file__).parents[2]


@dataclass
class Setup:
    """A recipe's settings."""

    decay: float | None = field(default=0.5, metadata={"help": "Off with None."})
    rows: int = field(default=3, metadata={"help": "Rows."})
    kinds: list[str] = field(default_factory=lambda: ["one"], metadata={"help": "Kinds."})

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError("kinds must name at least one")


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("decay: null\nrows: 4\n")
    return str(file)


def test_null_in_a_file_of_settings_is_none_and_not_the_default(settings):
    (setup,) = parse(Setup, arguments=[settings])
    assert (setup.decay, setup.rows) == (None, 4)


@pytest.mark.parametrize("arguments", [["--decay", "0.1"], ["--decay=0.1"]])
def test_the_command_line_goes_over_null(settings, arguments):
    (setup,) = parse(Setup, arguments=[settings, *arguments])
    assert setup.decay == 0.1


def test_null_for_an_unknown_field_is_told(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("dekay: null\n")
    with pytest.raises(ValueError, match="unknown settings: dekay"):
        parse(Setup, arguments=[str(file)])


def write(folder, text):
    file = folder / "settings.yaml"
    file.write_text(text)
    return file


def test_an_empty_list_in_a_file_is_empty_and_checked_as_one(tmp_path):
    with pytest.raises(ValueError, match="kinds must name at least one"):
        parse(Setup, arguments=[str(write(tmp_path, "kinds: []\n"))])


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rows: 3\ndecay: [1, 2\n", "settings.yaml, line 3 is not YAML"),
        ("rows: 3\n\tdecay: 1\n", "settings.yaml, line 2 is not YAML"),
        ("rows: *unknown\n", "settings.yaml, line 1 is not YAML: found undefined alias"),
        ("rows: 3\ndecay: 1\nrows: 4\n", "line 1: a mapping must have each key once, got rows twice"),
        ("rows: !!python/object:os.system 3\n", "line 1 is not YAML: could not determine a constructor"),
        ("rows: 3\x00\n", "is not a text in YAML"),
        ("- rows\n", "must hold `field: value` lines, got list"),
        ("", "must hold `field: value` lines, got NoneType"),
        ("3: 4\n", "must hold `field: value` lines"),
        (LAUGHS, "settings may have 10,000 values, aliases written out"),
        ("rows: &rows [*rows]\n", "settings may have 10,000 values"),
        ("rows: " + "[" * 5000, "is nested too deeply"),
    ],
)
def test_a_file_that_holds_no_settings_is_told_with_its_line(text, told, tmp_path):
    with pytest.raises(ValueError, match=r"settings\.yaml") as raised:
        parse(Setup, arguments=[str(write(tmp_path, text))])
    assert told in str(raised.value)


def test_aliases_may_be_used_with_measure(tmp_path):
    text = "decay: &decay 0.25\nrows: 2\nkinds: &kinds [a, b]\n"
    assert read_settings(write(tmp_path, text + "more: {<<: {x: *decay}, y: *kinds}\n"))["more"] == {
        "x": 0.25,
        "y": ["a", "b"],
    }


@pytest.mark.parametrize(
    ("text", "told"), [("[1]", "a JSON object"), ("{", "a JSON object"), ('{"a": 1, "a": 2}', "each key once, got a")]
)
def test_a_mapping_that_is_none_is_told(text, told):
    with pytest.raises(ValueError, match=f"rows must .*{told}"):
        parse_mapping(text, "rows")


def test_help_shows_our_own_settings_alone_and_all_are_known(capsys):
    with pytest.raises(SystemExit):
        parse(Setup, MultiTokenTrainingArguments, arguments=["--help"])
    printed = capsys.readouterr().out
    assert "--kinds" in printed
    assert "--head_warmup_steps" in printed
    assert "--fp16_full_eval" not in printed
    assert "transformers.TrainingArguments" in printed
    _, args = parse(Setup, MultiTokenTrainingArguments, arguments=["--fp16_full_eval", "true"])
    assert args.fp16_full_eval is True


_SCRIPT = """
from dataclasses import dataclass
from hf_targets.training.settings import parse

@dataclass
class Setup:
    misuse: bool = False

(setup,) = parse(Setup)
if setup.misuse:
    raise ValueError("misuse must be false")
int("a bug")
"""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "recipe.py: give a settings file, such as settings/recipe/smoke.yaml, or"),
        (["--misuse", "true"], 2, "recipe.py: misuse must be false"),
        (["--misuse", "false"], 1, "invalid literal for int"),
    ],
)
def test_misuse_ends_a_recipe_with_its_message_and_a_bug_with_its_traceback(arguments, code, told, tmp_path):
    (tmp_path / "recipe.py").write_text(_SCRIPT)
    (tmp_path / "settings" / "recipe").mkdir(parents=True)
    (tmp_path / "settings" / "recipe" / "smoke.yaml").touch()
    command = [sys.executable, "recipe.py", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert ("Traceback" in done.stderr) == (code == 1)
