import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from hf_targets import MultiTokenTrainingArguments
from hf_targets.training.settings import parse_mapping, read_settings
from hf_targets.training.settings import parse_settings as parse
from tests.programs import run_program


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


@dataclass
class Texts(Setup):
    """Settings of which some are texts."""

    language: str | None = field(default=None, metadata={"help": "A language."})
    place: str = field(default="here", metadata={"help": "A place."})
    several: list[str] | None = field(default=None, metadata={"help": "Several."})
    way: Literal["yes", "no"] = field(default="yes", metadata={"help": "A way."})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("language: no", "language must be a text, and YAML reads False; write it in quotes"),
        ("place: 0123", "place must be a text, and YAML reads 83; write it in quotes"),
        ("place: 2024-01-02", "place must be a text, and YAML reads datetime.date"),
        ("kinds: [a, 1.5]", "kinds must be a text, and YAML reads 1.5; write it in quotes"),
        ("kinds: [a, null]", "kinds must be a text, and YAML reads None; write it in quotes"),
        ("several: [no, b]", "several must be a text, and YAML reads False; write it in quotes"),
        ("way: no", "way must be a name, and YAML reads False; write it in quotes"),
        ("rows: null", "rows must have a value, got null; leave it out for its default"),
        ("place: null", "place must have a value, got null"),
    ],
)
def test_what_yaml_reads_as_something_else_is_told(text, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        parse(Texts, arguments=[str(write(tmp_path, text + "\n"))])


def test_texts_and_numbers_may_begin_with_a_minus(tmp_path):
    file = write(tmp_path, "place: '-x'\nlanguage: 'no'\ndecay: -1.0e-5\nkinds: ['-x', b]\nway: 'no'\n")
    (setup,) = parse(Texts, arguments=[str(file)])
    assert (setup.place, setup.language, setup.decay, setup.way) == ("-x", "no", -1e-5, "no")
    assert setup.kinds == ["-x", "b"]
    assert parse(Texts, arguments=[str(file), "--kinds", "c"])[0].kinds == ["c"]
    assert parse(Texts, arguments=[str(write(tmp_path, "rows: null\nplace: 7")), "--rows=5", "--place=b"])[0].rows == 5


@pytest.mark.parametrize(("processes", "has_one"), [("2", False), ("1", False), ("2", True)])
def test_processes_on_cpus_train_together(processes, has_one, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: has_one)

    @dataclass
    class Training:
        use_cpu: bool = field(default=False, metadata={"help": "On the CPU."})

    (training,) = parse(Training, arguments=["--use_cpu", "false"])
    assert training.use_cpu == (processes == "2" and not has_one)


@pytest.mark.parametrize("arguments", [["--decay", "0.1"], ["--decay=0.1"]])
def test_the_command_line_goes_over_null(settings, arguments):
    (setup,) = parse(Setup, arguments=[settings, *arguments])
    assert setup.decay == 0.1


def write(folder, text):
    file = folder / "settings.yaml"
    file.write_text(text)
    return file


@dataclass
class Leading(Setup):
    """Settings of which one may stand at the beginning, without its name."""

    leading_setting: ClassVar[str] = "kinds"


def test_values_at_the_beginning_are_those_of_the_setting_that_leads(settings):
    (setup,) = parse(Leading, arguments=["a", "b", "--rows", "5"])
    assert (setup.kinds, setup.rows, setup.decay) == (["a", "b"], 5, 0.5)
    (setup,) = parse(Leading, arguments=[settings, "a"])
    assert (setup.kinds, setup.rows) == (["a"], 4)
    assert parse(Leading, arguments=["--rows", "5"])[0].kinds == ["one"]
    with pytest.raises(ValueError, match="a belongs to no setting"):
        parse(Setup, arguments=["a", "--rows", "5"])


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--dekay", "3"], "unknown setting dekay; did you mean decay?"),
        (["--row", "3"], "unknown setting row; did you mean rows?"),
        (["--rows", "x"], "rows must be of type int, got 'x'"),
        (["--rows"], "rows: expected one argument"),
        (["--rows", "3", "4"], "4 belongs to no setting; write --name value"),
        (["rows"], "rows belongs to no setting"),
        (["missing.yaml"], "no settings file at missing.yaml"),
        (["--plugins", "no.such.module"], "plugins: no.such.module: there is no module of this name"),
        (["--plugins", "no_such_file.py"], "plugins: no_such_file.py: there is no such file"),
    ],
)
def test_what_cannot_be_a_setting_is_told_with_what_was_meant(arguments, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(Setup, arguments=arguments)


@pytest.mark.parametrize("text", ["dekay: null\n", "dekay: 3\n"])
def test_an_unknown_setting_of_a_file_is_told_with_the_file(text, tmp_path):
    with pytest.raises(ValueError, match=r"settings.yaml has the unknown setting dekay; did you mean decay\?"):
        parse(Setup, arguments=[str(write(tmp_path, text))])


def test_a_name_with_hyphens_goes_over_null(tmp_path):
    file = write(tmp_path, "head_warmup_steps: null\n")
    _, args = parse(Setup, MultiTokenTrainingArguments, arguments=[str(file), "--head-warmup-steps", "3"])
    assert args.head_warmup_steps == 3


def helped(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        parse(Setup, MultiTokenTrainingArguments, arguments=arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_has_a_line_for_each_setting_of_ours_with_its_default_and_help_all_has_all(capsys):
    short, whole = helped(capsys, "--help"), helped(capsys, "--help_all")
    assert re.search(r"^  --rows 3 +Rows\.$", short, re.MULTILINE)
    assert re.search(r"^  --kinds one +Kinds\.$", short, re.MULTILINE)
    assert "--head_warmup_steps" in short and "--help_all" in short
    assert "--fp16_full_eval" not in short
    assert len(short.splitlines()) < 30
    assert "[--" not in short.replace("[--setting value ...]", "")  # not the usage of argparse
    assert re.search(r"^  --fp16_full_eval false ", whole, re.MULTILINE)
    _, args = parse(Setup, MultiTokenTrainingArguments, arguments=["--fp16_full_eval", "true"])
    assert args.fp16_full_eval is True


_SCRIPT = '''
"""Do a thing.

And say no more."""
from dataclasses import dataclass
from pathlib import Path
from hf_targets.training.settings import parse_settings

@dataclass
class Setup:
    misuse: bool = False
    model: str | None = None
    file: str | None = None

(setup,) = parse_settings(Setup)
if setup.model:
    from transformers import AutoConfig
    AutoConfig.from_pretrained(setup.model)
if setup.file:
    Path(setup.file).read_text()
if setup.misuse:
    raise ValueError("misuse must be false")
open("no/setting/names/this") if setup.file == "" else int("a bug")
'''


@pytest.fixture
def recipe(tmp_path):
    """Return what runs a recipe with two settings files beside those of another recipe."""
    (tmp_path / "recipe.py").write_text(_SCRIPT)
    for name in ("recipe/smoke", "recipe/paper", "other/smoke"):
        file = tmp_path / "settings" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# Seconds: that it runs. And more.\nmisuse: true\n")
    with (tmp_path / "settings/recipe/paper.yaml").open("a") as file:
        file.write("output_dir: runs/recipe/large\n")
    (tmp_path / "settings/recipe/inner.yaml").write_text("# Of a part.\noutput_dir: runs/recipe/large/b\n")
    (tmp_path / "settings/recipe/z.yaml").write_text("# Of a part.\noutput_dir: runs/recipe/large\n")

    def run(*arguments, **environment):
        return run_program(Path("recipe.py"), *arguments, folder=tmp_path, **environment)

    return run


def test_a_recipe_without_arguments_says_what_it_does_and_how_to_start(recipe):
    done = recipe()
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "Do a thing."
    assert "usage: recipe.py [settings.yaml] [--setting value ...]" in lines
    assert "  settings/recipe/smoke.yaml  Seconds: that it runs." in lines
    assert "start with: python recipe.py settings/recipe/smoke.yaml" in lines
    assert not [line for line in lines if "other" in line or "say no more" in line]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--misuse", "true"], "recipe.py: misuse must be false"),
        (["settings/other/smoke.yaml"], "settings/other/smoke.yaml has settings of another program, other"),
        (["--model", "no-such-model"], "recipe.py: no-such-model cannot be loaded: "),
        (["--model", "settings"], "recipe.py: "),
        (["--model", "runs/recipe/smoke"], "there is no trained model in runs/recipe/smoke; train it first: python "),
        (["--model", "runs/recipe/smoke/a-seed0"], "train it first: python recipe.py settings/recipe/smoke.yaml"),
        (["--model", "runs/recipe/large/a-seed0"], "train it first: python recipe.py settings/recipe/paper.yaml"),
        (["--model", "runs/recipe/large/b/a-seed0"], "train it first: python recipe.py settings/recipe/inner.yaml"),
        (["--model", "runs/recipe/other"], "train it first: python recipe.py\n"),
        (["--file", "no/such/file"], "recipe.py: no/such/file: No such file or directory"),
        (["--file", "settings"], "recipe.py: settings: Is a directory"),
    ],
)
def test_misuse_ends_a_recipe_with_one_line(arguments, told, recipe):
    done = recipe(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("recipe.py: ") and told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--misuse", "false"], "invalid literal for int"), (["--file", ""], "No such file or directory")],
)
def test_a_defect_of_a_recipe_keeps_its_traceback(arguments, told, recipe):
    done = recipe(*arguments)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and told in done.stderr


def test_of_several_processes_one_speaks(recipe):
    told = [recipe("--misuse", "true", RANK=rank) for rank in ("0", "1")]
    assert [done.returncode for done in told] == [2, 2]
    assert [bool(done.stderr) for done in told] == [True, False]
    assert recipe(RANK="1").stderr == recipe("--help", RANK="1").stdout == ""
