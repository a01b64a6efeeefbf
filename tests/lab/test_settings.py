import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from hf_targets import MultiTokenTrainingArguments
from hf_targets.multitoken.heads import HEADS
from lab.draft_heads import settings_of
from lab.settings import parse_mapping, parse_settings, stated_settings


@dataclass
class Setup:
    name: str = "one"
    size: int | None = 3
    rate: float = 0.5
    sizes: list[int] = field(default_factory=lambda: [1])
    fast: bool = True
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.rate > 1:
            raise ValueError(f"rate must be at most 1, got {self.rate}")


def write(folder, text):
    (folder / "settings.yaml").write_text(text)
    return str(folder / "settings.yaml")


def test_the_command_line_comes_before_the_file_and_the_file_before_defaults(tmp_path):
    file = write(tmp_path, "name: file\nsize: null\nrate: 1e-3\nsizes: [2, 3]\nfast: false\nconfig: {a: [1]}\n")
    (setup,) = parse_settings(Setup, arguments=[file, "--name", "-given", "--sizes", "4"][:1])
    assert setup == Setup("file", None, 1e-3, [2, 3], False, {"a": [1]})
    (setup,) = parse_settings(Setup, arguments=[file, "--name=given", "--size", "5", "--sizes", "4", "--fast"])
    assert setup == Setup("given", 5, 1e-3, [4], True, {"a": [1]})
    (setup,) = parse_settings(Setup, arguments=[write(tmp_path, "size: 5"), "--size", "null", "--name", "null"])
    assert (setup.size, setup.name) == (None, None)
    assert stated_settings(Setup, arguments=["--config", json.dumps({"b": 2})]) == {"config": {"b": 2}}


WRONG = [
    ("nam: x", "--nam"),
    ("nam: null", "nam"),
    ("size: many", "--size"),
    ("rate: 2", "at most 1"),
    ("plugins: [code.py]", "command line"),
    ("[" * 2000, "lines"),
]


@pytest.mark.parametrize(("given", "word"), WRONG)
def test_what_is_wrong_ends_the_script_with_its_word(given, word, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_settings(Setup, arguments=[write(tmp_path, given)])
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


def test_arguments_of_a_training_are_those_of_transformers(tmp_path):
    given = {"output_dir": str(tmp_path), "learning_rate": 1, "ensemble_weights": [0, 0.5], "report_to": "none"}
    setup, args = parse_mapping(
        {**given, "name": "x", "load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
        Setup,
        MultiTokenTrainingArguments,
    )
    assert (setup.name, args.learning_rate, args.ensemble_weights) == ("x", 1.0, [0.0, 0.5])
    assert (args.metric_for_best_model, args.greater_is_better) == ("perplexity", False)


def test_a_training_is_resumed_from_the_newest_whole_checkpoint_of_any_recipe(tmp_path):
    def resumed(value):
        given = {"output_dir": str(tmp_path), "report_to": "none", "resume_from_checkpoint": value}
        return parse_mapping(given, TrainingArguments)[0].resume_from_checkpoint

    assert resumed("false") is None and resumed("elsewhere") == "elsewhere"
    with pytest.raises(ValueError, match="no whole checkpoint"):
        resumed("true")
    for name in ("checkpoint-3", "checkpoint-12", "checkpoint-20"):
        (tmp_path / name).mkdir()
    for name in ("checkpoint-3", "checkpoint-12"):  # the last one was broken off
        (tmp_path / name / "trainer_state.json").write_text("{}")
    assert resumed(True) == resumed("true") == str(tmp_path / "checkpoint-12")


@pytest.mark.parametrize("name", ["my_file.py", "my_module"])
def test_plugins_are_imported_before_values_are_checked(name, tmp_path, monkeypatch):
    monkeypatch.setattr(HEADS, "_classes", dict(HEADS._classes))
    monkeypatch.syspath_prepend(tmp_path)
    code = "from hf_targets.multitoken.heads import HEADS, Head\nHEADS.register('mine', type('Mine', (Head,), {}))\n"
    Path(tmp_path, f"{name.removesuffix('.py')}.py").write_text(code)
    for _ in range(2):  # the second changes nothing
        parse_settings(Setup, arguments=["--plugins", str(tmp_path / name) if name.endswith(".py") else name])
    assert settings_of("mine")["head"] == "mine"


def test_a_run_that_settings_name_is_made_and_has_ended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = "runs/tables/train_translation/multi30k-de-en/plain-seed{seed}"
    command = "python recipes/tables/train_translation.py recipes/settings/tables/train_translation/multi30k.yaml"
    with pytest.raises(ValueError, match=f"plain-seed0 is not there.*{command}"):
        parse_settings(Setup, arguments=["--name", run])
    parse_settings(Setup, arguments=["--name", "runs/mine/größte"])  # which no recipe makes
    (tmp_path / "runs" / "train_translation" / "größte").mkdir(parents=True)
    parse_settings(Setup, arguments=["--name", "runs/train_translation/größte"])
    Path(run.format(seed=0)).mkdir(parents=True)
    Path(run.format(seed=0), "settings.json").touch()
    with pytest.raises(ValueError, match="has not ended"):
        parse_settings(Setup, arguments=["--name", run])
    Path(run.format(seed=0), "results.json").touch()
    assert parse_settings(Setup, arguments=["--name", run]) == (Setup(run),)
