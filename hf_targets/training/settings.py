"""Settings of a recipe: a YAML file, the command line over it, and an output folder that is free to use."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser


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

    A field on the command line goes over the same field in the file, and that over its default.

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
    if left:
        raise ValueError(f"unknown settings: {' '.join(left)}; --help lists the known ones")
    return tuple(filled)


def claim_output_dir(output_dir: str, names: Sequence[str], *, overwrite: bool, resume: bool) -> Path:
    """Return the output folder, once it is certain that nothing of worth is lost in it.

    Args:
        names: Subfolders that the recipe writes; they alone are removed when overwriting.
        overwrite: Whether an older output may go.
        resume: Whether an older output is to be gone on with.
    Raises:
        ValueError: If the folder has something in it and neither is asked for, or it is a file.
    """
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir {folder} is a file; name a folder")
    if folder.exists() and any(folder.iterdir()) and not resume:
        if not overwrite:
            raise ValueError(
                f"output_dir {folder} is not empty; name another, or pass --overwrite_output_dir to replace it, or "
                "--resume_from_checkpoint true to go on"
            )
        for name in names:
            shutil.rmtree(folder / name, ignore_errors=True)
    return folder
