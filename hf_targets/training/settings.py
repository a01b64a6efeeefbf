"""Settings of a recipe: a YAML file, the command line over it, and an output folder that is free to use."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser, TrainingArguments


def _as_arguments(settings: dict[str, Any]) -> list[str]:
    arguments: list[str] = []
    for key, value in settings.items():
        if value is None:
            continue
        values = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
        arguments += [f"--{key}", *map(str, values)]
    return arguments


def parse(*dataclass_types: type, arguments: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from the command line: `recipe.py [settings.yaml] [--field value ...]`.

    A field on the command line goes over the same field in the file, and that over its default; `null` in the file is
    None.

    Args:
        dataclass_types: As for `HfArgumentParser`; each field's help is its metadata's.
        arguments: The command line without the program's name; None takes that of the process.
    Raises:
        ValueError: If the file is not a YAML mapping, or a field is of none of the dataclasses.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    settings: dict[str, Any] = {}
    if given and given[0].endswith((".yaml", ".yml")):
        path = Path(given.pop(0))
        if not path.is_file():
            raise ValueError(f"no settings file at {path}")
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError(f"{path} must hold `field: value` lines, got {type(settings).__name__}")
    parser = HfArgumentParser(dataclass_types)  # pyright: ignore[reportArgumentType]
    *filled, left = parser.parse_args_into_dataclasses(
        [*_as_arguments(settings), *given], return_remaining_strings=True, look_for_args_file=False
    )
    overridden = {argument.split("=")[0].removeprefix("--") for argument in given}
    for key in (key for key, value in settings.items() if value is None and key not in overridden):
        homes = [one for one in filled if hasattr(one, key)]
        left += [] if homes else [key]
        for home in homes:
            setattr(home, key, None)
    if left:
        raise ValueError(f"unknown settings: {' '.join(left)}; --help lists the known ones")
    return tuple(filled)


def check_output_dir(args: TrainingArguments, *, overwrite: bool) -> tuple[Path, bool]:
    """Return the output folder and whether to resume in it, once it is certain that nothing of worth is lost.

    Nothing is written or removed here.

    Args:
        args: Their `resume_from_checkpoint` is "true" or "false": every row of a comparison finds its own checkpoint.
        overwrite: Whether an older output may be replaced.
    Raises:
        ValueError: If the folder has something in it and neither is asked for, it is a file, or
            `resume_from_checkpoint` is anything else.
    """
    wanted = {"none": False, "false": False, "true": True}.get(str(args.resume_from_checkpoint).lower())
    if wanted is None:
        raise ValueError(
            f"resume_from_checkpoint must be true or false, as every row has checkpoints of its own, got "
            f"{args.resume_from_checkpoint!r}"
        )
    folder = Path(args.output_dir or ".")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir {folder} is a file; name a folder")
    is_used = folder.exists() and any(folder.iterdir())
    if args.process_index == 0 and is_used and not wanted and not overwrite:
        raise ValueError(
            f"output_dir {folder} is not empty; name another, or pass --overwrite_output_dir true to replace it, or "
            "--resume_from_checkpoint true to go on"
        )
    return folder, wanted
