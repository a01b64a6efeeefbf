"""What an experiment leaves in its output folder: names that its models may have, and how it alone is removed."""

import glob
import json
import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from hf_targets.backbones.configuration import PACKAGE_IMPORT

TRAINING_NAME = "training.json"
"""What a finished training took and logged, beside its checkpoints."""

TOKENIZER_OUTPUT = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "chat_template.jinja"),
)
MODEL_OUTPUT = (
    *("config.json", "generation_config.json", "model.safetensors", "model-*-of-*.safetensors", "heads.safetensors"),
    *("model.safetensors.index.json", "training_args.bin", PACKAGE_IMPORT, "README.md", *TOKENIZER_OUTPUT),
)
TRAINER_OUTPUT = ("checkpoint-[0-9]*", "broken-checkpoint-[0-9]*", TRAINING_NAME, "runs/*/events.out.tfevents.*")
BACKBONE = "backbone"
"""The folder of the model that another one wraps, in the folder of that."""
RUN_OUTPUT = (*TRAINER_OUTPUT, *MODEL_OUTPUT, *(f"{BACKBONE}/{pattern}" for pattern in MODEL_OUTPUT))
"""Patterns of what a training, a model, its tokenizer and its card, and its backbone alone, write into a folder."""


def check_run_names(names: Sequence[str], *, reserved: Iterable[str] = (), setting: str = "rows") -> None:
    """Make sure that each name can be the folder of a run.

    Args:
        reserved: Patterns of what else is written beside those folders.
        setting: Where the names come from.
    Raises:
        ValueError: If there is no name, one is not a plain name, or it is another's or that of something else.
    """
    if not names:
        raise ValueError(f"{setting} must name at least one model, got none")
    seen: dict[str, str] = {}
    for name in names:
        if not _is_plain(name):
            raise ValueError(
                f"{setting} are names of folders, so each must be one printable path component of at most 200 bytes "
                f"without / \\ : and spaces around it, not '.', '..' or empty, got {name!r}"
            )
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:
            raise ValueError(
                f"{setting} must have names that differ in more than the case of letters, as each is a folder, got "
                f"{seen[key]!r} and {name!r}"
            )
        if any(fnmatchcase(key, pattern.split("/")[0].casefold()) for pattern in reserved):
            raise ValueError(f"{setting} must not have the name of another output, got {name!r}")
        seen[key] = name


def _is_plain(name: Any) -> bool:
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > 200:
        return False
    is_component = name == PurePosixPath(name).name == PureWindowsPath(name).name
    return is_component and name not in ("", ".", "..") and name == name.strip()


def check_run_folder(folder: Path) -> None:
    """Make sure that a run's folder can be written and emptied.

    Raises:
        ValueError: If it is a link, which may lead anywhere, or a file.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        kind = f"a link to {folder.readlink()}" if folder.is_symlink() else "a file"
        raise ValueError(f"{folder} must be a folder of its own, to be written and emptied, and is {kind}; remove it")


def check_output_folder(folder: Path) -> None:
    """Make sure before long work that its results can be written.

    Raises:
        ValueError: If the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir must be a folder, and {folder} is a file; name another")


def check_output_files(**files: str | None) -> None:
    """Make sure before long work that files can be written.

    Args:
        files: By the settings that name them; None: no file is asked for.
    Raises:
        ValueError: If one is a folder.
    """
    for setting, file in files.items():
        if file is not None and Path(file).is_dir():
            raise ValueError(f"{setting} must be a file to write, and {file} is a folder; name a file in it")


def run_patterns(folder: str) -> list[str]:
    """Return the patterns of a run's output, as seen from the output folder."""
    return [f"{glob.escape(folder)}/{pattern}" for pattern in RUN_OUTPUT]


def find_output(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return what there is of these patterns in a folder; nothing that a link or `..` leads to outside of it."""
    root = folder.resolve()
    parts = {pattern: PurePath(pattern).parts for pattern in patterns}
    inside = [p for p in parts if parts[p] and not PurePath(p).is_absolute() and ".." not in parts[p]]
    found = {path for pattern in inside for path in folder.glob(pattern)}
    return sorted(path for path in found if path.parent.resolve().is_relative_to(root))


def remove_output(folder: Path, patterns: Iterable[str]) -> None:
    """Remove what `find_output` finds, and the subfolders that are empty then; a link is removed, not its target."""
    found = find_output(folder, patterns)
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for parent in sorted({path.parent for path in found} - {folder}, reverse=True):  # those inside come first
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def write_json(file: Path, content: Any) -> None:
    """Write a file that is whole at any time: the older one until the new one is there. Its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text, part = json.dumps(content, indent=1, default=str) + "\n", file.with_name(f"{file.name}.part")
    with part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, file)
