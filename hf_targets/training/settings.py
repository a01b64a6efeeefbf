"""Settings of a recipe: a YAML file, and the command line over it."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import date
from difflib import get_close_matches
from enum import Enum
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser, TrainingArguments

from hf_targets.training.misuse import end_on_misuse, end_with, is_first_process
from hf_targets.training.plugins import import_plugins
from hf_targets.training.processes import needs_cpu
from hf_targets.training.settings_files import read_settings
from hf_targets.training.settings_help import PLUGINS_HELP, help_text, settings_files, start_text


def parse_settings(*dataclass_types: type, arguments: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from the command line: `recipe.py [settings.yaml] [--field value ...]`.

    A field on the command line takes precedence over the same field in the file, and that over its default; `null` in
    the file is None. `--plugins module_or_file ...` is known to every program: these are imported before the values are
    checked (`import_plugins`). Several processes on a machine without an accelerator get `use_cpu`, so that they train
    together. `--help` lists our own settings, `--help_all` those of Transformers too. A program without any argument
    prints what it does and how to start it, and ends with exit code 2.

    Args:
        dataclass_types: As for `HfArgumentParser`; each field's help is its metadata's, and `settings_title` of the
            class that defines it is the title of its group. A class with `leading_setting` names the field that takes
            the values at the beginning of the command line, before the first `--name`.
        arguments: The command line without the program's name; None takes that of the process, and lets misuse end the
            process with its message alone and exit code 2 (`end_on_misuse`).
    Raises:
        ValueError: If the file is not a YAML mapping, or one of another recipe; a field is of none of the dataclasses,
            of another type or out of range; or `seed` is given where there are `seeds`.
    """
    named: list[str] = []
    program = Path(sys.argv[0]) if arguments is None else None
    given = list(sys.argv[1:] if arguments is None else arguments)
    if program is not None:
        end_on_misuse(__file__, named)
        if not given:
            end_with(start_text(program, dataclass_types))
    if {"-h", "--help", "--help_all"} & set(given):
        if is_first_process():
            print(help_text(Path(sys.argv[0]), dataclass_types, everything="--help_all" in given))
        raise SystemExit(0)

    parser = _Parser(dataclass_types, allow_abbrev=False)  # pyright: ignore[reportArgumentType]
    parser.add_argument("--plugins", nargs="+", help=PLUGINS_HELP)
    known = {action.dest for action in parser._actions} - {"help"}
    overridden = [_name_of(argument) for argument in given if argument.startswith("--")]
    settings: dict[str, Any] = {}
    if given and given[0].endswith((".yaml", ".yml")):
        file = Path(given.pop(0))
        _check_recipe(file, program)
        settings = read_settings(file)
        _check_seeds(known, settings)
        _check_known(settings, known, f"{file} has the ")
    for leading in (kind.leading_setting for kind in dataclass_types if hasattr(kind, "leading_setting")):
        values = list(takewhile(lambda one: not one.startswith("--"), given))
        given = [f"--{leading}", *values, *given[len(values) :]] if values else given
        overridden += [leading] if values else []
    _check_seeds(known, overridden)
    _check_known([name for name in overridden if name.removeprefix("no_") not in known], known, "")
    lists = {action.dest for action in parser._actions if action.nargs == "+"}
    of_texts = {action.dest for action in parser._actions if action.nargs == "+" and action.type is str}
    unsaid = {
        key: value
        for key, value in settings.items()
        if value is None or (value == [] and key in lists) or (_is_texts(value) and key in of_texts)
    }
    said = {key: value for key, value in settings.items() if key not in unsaid}
    _check_types(dataclass_types, {key: value for key, value in settings.items() if key not in overridden})
    namespace, left = parser.parse_known_args([*_as_arguments(said), *given])
    if left:
        raise ValueError(f"{' '.join(left)} belongs to no setting; write --name value, or --help for the names")
    values = vars(namespace) | {key: value for key, value in unsaid.items() if key not in overridden}
    if "use_cpu" in known and needs_cpu():
        values["use_cpu"] = True  # else each process would train a model of its own
    import_plugins(values.pop("plugins") or [])
    filled = parser.parse_dict(values)
    named += _strings(getattr(one, entry.name) for one in filled for entry in fields(one) if entry.init)
    return filled


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


class _Parser(HfArgumentParser):
    """A parser that raises where argparse prints its usage and ends the process."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong, with names as settings files have them."""
        message = re.sub(r"--(\w+)(?:/--[\w-]+)*", r"\1", message).removeprefix("argument ")
        message = re.sub(r"^(\w+): invalid (\w+) value: (.*)", r"\1 must be of type \2, got \3", message)
        raise ValueError(re.sub(r"^the following arguments are required: (.*)", r"give a value for \1", message))


def _check_recipe(file: Path, program: Path | None) -> None:
    """Refuse a settings file that lies among those of another recipe."""
    own = [] if program is None else settings_files(program)
    folder = file.resolve().parent
    if own and folder != own[0].resolve().parent and folder.parent == own[0].resolve().parent.parent:
        raise ValueError(f"{file} has settings of another program, {folder.name}; this one's: {_listed(own)}")


def _check_seeds(known: set[str], names: Iterable[str]) -> None:
    if "seeds" in known and "seed" in names:
        raise ValueError("seed is for a single training; give seeds in its place, such as --seeds 0 1 2, or --seeds 3")


def _check_known(names: Iterable[str], known: set[str], where: str) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        near = [match for name in unknown for match in get_close_matches(name, known, n=1)]
        hint = f"did you mean {_listed(dict.fromkeys(near))}? " if near else ""
        plural = "s" if len(unknown) > 1 else ""
        raise ValueError(f"{where}unknown setting{plural} {_listed(unknown)}; {hint}--help lists the known ones")


def _check_types(kinds: Iterable[type], settings: dict[str, Any]) -> None:
    """Refuse a text that YAML reads as something else, and null for a setting that must have a value."""
    known = {entry.name: (kind, entry) for kind in kinds for entry in fields(kind) if entry.name in settings}
    for name, (kind, entry) in known.items():
        value, hint = settings[name], get_type_hints(kind)[name]
        options = {*get_args(hint)} if get_origin(hint) in (Union, UnionType) else {hint}
        if value is None and entry.default is not None and not options & {NoneType, Any}:
            raise ValueError(f"{name} must have a value, got null; leave it out for its default")
        if isinstance(value, bool) and bool not in options and any(map(_has_names, options)):
            raise ValueError(f"{name} must be a name, and YAML reads {value!r}; write it in quotes")
        if options - {NoneType} in ({str}, {list[str]}) and not issubclass(kind, TrainingArguments):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, bool | int | float | date) or (one is None and isinstance(value, list)):
                    raise ValueError(f"{name} must be a text, and YAML reads {one!r}; write it in quotes")


def _has_names(option: Any) -> bool:
    return get_origin(option) is Literal or (isinstance(option, type) and issubclass(option, Enum))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))


def _name_of(argument: str) -> str:
    return argument.split("=")[0].removeprefix("--").replace("-", "_")


def _as_arguments(settings: dict[str, Any]) -> list[str]:
    arguments: list[str] = []
    for key, value in settings.items():
        values = value if isinstance(value, list) and value else [value]
        texts = [json.dumps(one) if isinstance(one, dict) else str(one) for one in values]
        arguments += [f"--{key}={texts[0]}"] if len(texts) == 1 else [f"--{key}", *texts]  # a text may begin with "-"
    return arguments


def _strings(values: Iterable[Any]) -> list[str]:
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [one for found in lists for one in found if isinstance(one, str)]
