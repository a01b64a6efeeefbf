"""Settings of a recipe: a YAML file, and the command line over it."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

import yaml
from transformers import HfArgumentParser, TrainingArguments

_MAX_NODES = 10_000
"""Values that a settings file may have, each counted as often as it is referred to."""


def parse(*dataclass_types: type, arguments: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from the command line: `recipe.py [settings.yaml] [--field value ...]`.

    A field on the command line takes precedence over the same field in the file, and that over its default; `null` in
    the file is None.

    Args:
        dataclass_types: As for `HfArgumentParser`; each field's help is its metadata's.
        arguments: The command line without the program's name; None takes that of the process, and lets a ValueError
            that tells of misuse end the process with its message alone and exit code 2.
    Raises:
        ValueError: If nothing is given to a recipe that has settings files, the file is not a YAML mapping, a field
            is of none of the dataclasses, or `seed` is given where there are `seeds`.
    """
    if arguments is None:
        sys.excepthook = _end_on_misuse
        _check_given()
    given = list(sys.argv[1:] if arguments is None else arguments)
    settings: dict[str, Any] = {}
    if given and given[0].endswith((".yaml", ".yml")):
        settings = read_settings(Path(given.pop(0)))
    parser = _parser(dataclass_types)
    lists = {action.dest for action in parser._actions if action.nargs == "+"}
    unsaid = {key: value for key, value in settings.items() if value is None or (value == [] and key in lists)}
    said = {key: value for key, value in settings.items() if key not in unsaid}
    namespace, left = parser.parse_known_args([*_as_arguments(said), *given])
    values = vars(namespace)
    left += [key for key in unsaid if key not in values]
    overridden = {argument.split("=")[0].removeprefix("--") for argument in given}
    values |= {key: value for key, value in unsaid.items() if key not in overridden}
    if "seeds" in values and "seed" in {*settings, *overridden}:
        raise ValueError("seed is for a single training; give seeds in its place, such as --seeds 0 1 2, or --seeds 3")
    if left:
        raise ValueError(f"unknown settings: {' '.join(left)}; --help lists the known ones")
    return parser.parse_dict(values)


def parse_mapping(text: str, setting: str) -> dict[str, Any]:
    """Return the JSON object that a setting holds.

    Raises:
        ValueError: If it is none, or has a key twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{setting} must name each key once, got {', '.join(twice)} twice")
        return dict(pairs)

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"{setting} must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{setting} must be a JSON object, got {text!r}")
    return content


def read_settings(path: Path) -> dict[str, Any]:
    """Return the fields of a YAML file.

    Raises:
        ValueError: If there is no such file, or it is not a mapping of names, has a key twice, or grows beyond all
            measure by aliases.
    """
    if not path.is_file():
        raise ValueError(f"no settings file at {path}")
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, yaml.SafeLoader)
        _check_nodes(path, node, {})
        settings = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ValueError(f"{path}{line} is not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a text in YAML: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply for settings") from error
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ValueError(f"{path} must hold `field: value` lines, got {type(settings).__name__}")
    return settings


def _check_nodes(path: Path, node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """Return how many values a node holds, each counted as often as it is referred to."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    line = f"{path}, line {node.start_mark.line + 1}"
    if id(node) not in sizes:
        sizes[id(node)] = _MAX_NODES  # until it is known, so that what refers to itself is refused
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(value,) for value in node.value]
        names = [key.value for key, *_ in pairs if isinstance(node, yaml.MappingNode)]
        if twice := sorted({str(name) for name in names if names.count(name) > 1}):
            raise ValueError(f"{line}: a mapping must have each key once, got {', '.join(twice)} twice")
        sizes[id(node)] = 1 + sum(_check_nodes(path, value, sizes) for pair in pairs for value in pair)
    if sizes[id(node)] > _MAX_NODES:
        raise ValueError(f"{line}: settings may have {_MAX_NODES:,} values, aliases written out, and these have more")
    return sizes[id(node)]


def _as_arguments(settings: dict[str, Any]) -> list[str]:
    arguments: list[str] = []
    for key, value in settings.items():
        values = value if isinstance(value, list) and value else [value]
        arguments += [f"--{key}", *(json.dumps(one) if isinstance(one, dict) else str(one) for one in values)]
    return arguments


def _parser(dataclass_types: Sequence[type]) -> HfArgumentParser:
    """Return a parser whose help shows our own settings, and leaves out those that Transformers documents."""
    parser = HfArgumentParser(dataclass_types)  # pyright: ignore[reportArgumentType]
    if any(issubclass(kind, TrainingArguments) for kind in dataclass_types):
        known = {field.name for field in fields(TrainingArguments)}
        for action in parser._actions:
            action.help = argparse.SUPPRESS if action.dest in known else action.help
        parser.epilog = (
            "All settings of transformers.TrainingArguments are known too, such as --output_dir, --seed, "
            "--num_train_epochs, --max_steps, --learning_rate and --per_device_train_batch_size."
        )
    return parser


def _check_given() -> None:
    recipe = Path(sys.argv[0])
    files = sorted((recipe.parent / "settings" / recipe.stem).glob("*.yaml"))
    if len(sys.argv) == 1 and files:
        raise ValueError(
            f"give a settings file, such as {' or '.join(map(str, files))}, or settings as --name value; --help lists "
            "them"
        )


def _end_on_misuse(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """End the process with the message of a ValueError that our code or a settings class raises; show others whole."""
    frames = extract_tb(traceback)
    if isinstance(error, ValueError) and frames:
        file = Path(frames[-1].filename).resolve()
        is_ours = file.is_relative_to(Path(__file__).parents[1]) or file == Path(sys.argv[0]).resolve()
        is_told = is_ours and (frames[-1].line or "").startswith("raise ")  # and not what a call into C raises
        if is_told or any(frame.filename == __file__ for frame in frames):
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
            sys.exit(2)
    sys.__excepthook__(kind, error, traceback)
