"""Settings of a script: dataclasses, filled from a YAML file and from the command line, which comes first."""

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from hf_targets.training.checkpoints import newest_checkpoint

RECIPES = Path(__file__).parents[1]


def parse_settings(
    *dataclass_types: type, description: str | None = "", arguments: Sequence[str] | None = None
) -> tuple:
    """Fill dataclasses from `script.py [settings.yaml] [--name value ...]`, as `HfArgumentParser` does.

    `--plugins module_or_file ...` imports these first, which runs their code, so that settings may name the heads,
    samplers and miners that they register; a file of settings, which may come from others, cannot name any.
    """
    stated = stated_settings(*dataclass_types, description=description, arguments=arguments)
    filled = parse_mapping(stated, *dataclass_types)
    check_earlier_runs(stated)
    return filled


def stated_settings(
    *dataclass_types: type, description: str | None = "", arguments: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the settings that a YAML file and the command line state, by name, each of the type of its field.

    `include: other.yaml` in the file takes over what that one states, where the file does not state it itself.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(dataclass_types, description)
    written: Any = {}
    if given and given[0].endswith((".yaml", ".yml")):
        file = Path(given.pop(0))
        try:
            written = _read(file)
        except (OSError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
            parser.error(f"{file} must hold `name: value` lines: {error}")
        if "plugins" in written:
            parser.error(f"{file} names plugins, which run code: name them on the command line, as --plugins")
    return _checked(parser, written, given)


def _read(file: Path) -> dict[str, Any]:
    """Return what a YAML file states, over what the file states that its `include` names, as seen from its folder."""
    written = dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    included = written.pop("include", None)
    return written if included is None else {**_read(file.parent / included), **written}


def parse_mapping(settings: Mapping[str, Any], *dataclass_types: type) -> tuple:
    """Fill dataclasses from a mapping of names to values; `resume_from_checkpoint: true` is the newest whole one."""
    parser = _parser(dataclass_types, "")
    values = _checked(parser, settings, [])
    for plugin in map(Path, values.pop("plugins", [])):
        sys.path[:0] = [str(plugin.parent)] if plugin.suffix == ".py" else []
        importlib.import_module(plugin.stem if plugin.suffix == ".py" else str(plugin))
    is_alone = torch.accelerator.is_available() or int(os.environ.get("WORLD_SIZE", "1")) == 1
    known = {field.name for kind in dataclass_types for field in fields(kind)}
    if "use_cpu" in known and not is_alone:
        values["use_cpu"] = True  # Trainer must be told where several processes were started without an accelerator
    if "hub_strategy" in known:
        values.setdefault("hub_strategy", "end")  # a model that is not whole is uploaded only if that is asked for
    try:
        filled = parser.parse_dict(values)
    except (ValueError, TypeError) as error:  # of a field's check, or of one that must be given
        parser.error(str(error).partition("__init__() ")[2] or str(error))
    for args in filled:
        if isinstance(args, TrainingArguments) and str(args.resume_from_checkpoint).lower() in ("true", "false"):
            asked, folder = str(args.resume_from_checkpoint).lower() == "true", str(args.output_dir)
            args.resume_from_checkpoint = newest_checkpoint(folder) if asked else None
            if asked and args.resume_from_checkpoint is None:
                raise ValueError(f"there is no whole checkpoint in {folder}; leave out resume_from_checkpoint")
    return filled


def check_earlier_runs(settings: Mapping[str, Any]) -> None:
    """Check that the runs of recipes which settings name as what they read are there and have ended."""
    seed = str(settings.get("seed", (settings.get("seeds") or [0])[0]))
    others = ("output", "resume", "rows", "run_name", "prompt", "hub")
    read = {name: value for name, value in settings.items() if not name.startswith(others)}
    for text in re.findall(r'"([^"]+)"', json.dumps(read, default=str, ensure_ascii=False)):
        folder = Path(text.replace("{seed}", seed))
        if not os.path.exists(folder) and (command := _command_of(folder)) is not None:
            raise ValueError(f"{folder} is not there yet; first run: {command}")
        if os.path.isfile(folder / "settings.json") and not os.path.isfile(folder / "results.json"):
            raise ValueError(f"{folder} is of a run that has not ended; start it again, and it goes on")


def _command_of(run: Path) -> str | None:
    """Return the command that makes `runs/SCRIPT/...` or `runs/tables/SCRIPT/...`, None for any other folder."""
    script = Path(*run.parts[1 : 3 if run.parts[1:2] == ("tables",) else 2])
    if run.parts[:1] != ("runs",) or not Path(RECIPES, f"{script}.py").is_file():
        return None
    files = sorted(Path(RECIPES, "settings", script).glob("*.yaml"))
    own = [file.stem for file in files if run.is_relative_to(_read(file).get("output_dir", "none"))]
    return f"python recipes/{script}.py recipes/settings/{script}/{(own or ['smoke'])[0]}.yaml"


def _parser(dataclass_types: Sequence[type], description: str | None) -> HfArgumentParser:
    usage = "%(prog)s [settings.yaml] [--name value ...]"
    parser: Any = HfArgumentParser(dataclass_types, allow_abbrev=False, usage=usage, description=description)  # pyright: ignore
    parser.add_argument("--plugins", nargs="+", help="Modules or files to import first, which runs their code.")
    for action in parser._actions:
        action.required = False
        action.default = argparse.SUPPRESS  # only what is stated is in the namespace
        if action.type is dict or get_origin(action.type) is dict:
            action.type = json.loads
        elif action.type is not None:
            action.type = lambda text, kind=action.type: text if text == "null" else kind(text)
    return parser


def _checked(parser: HfArgumentParser, settings: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return settings and the arguments over them, each value through the type of its field."""
    empty = {name: value for name, value in settings.items() if value is None or value == []}
    texts = []
    for name, value in settings.items():
        values = value if isinstance(value, list) else [value]
        words = [json.dumps(one) if isinstance(one, dict) else str(one) for one in values]
        if name not in empty:
            texts += [f"--{name}={words[0]}"] if len(words) == 1 else [f"--{name}", *words]
    if unknown := set(empty) - {action.dest for action in parser._actions}:
        parser.error(f"unrecognized arguments: {', '.join(sorted(unknown))}")
    stated = vars(parser.parse_args([*texts, *arguments]))
    return {**empty, **{name: None if value == "null" else value for name, value in stated.items()}}  # as in YAML
