"""A phrase vocabulary on disk: a safetensors file of arrays, and a JSON file of settings and of both checksums."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hf_targets.data.atomic_write import written_together

ARRAYS_FILE = "phrase_vocabulary.safetensors"
SETTINGS_FILE = "phrase_vocabulary.json"
FORMAT_VERSION = 1


def write_phrases(folder: str | os.PathLike, settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write both files to `folder`, which is created if it is missing.

    After an interrupted write, `folder` holds either the previous files or files that `read_phrases` refuses.
    """
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    settings = {"format_version": FORMAT_VERSION, "arrays_sha256": sha256(content).hexdigest(), **settings}
    text = json.dumps({**settings, "settings_sha256": _checksum(settings)}, indent=1)
    with written_together(folder, ARRAYS_FILE, SETTINGS_FILE) as unfinished:
        (unfinished / ARRAYS_FILE).write_bytes(content)
        (unfinished / SETTINGS_FILE).write_bytes(text.encode())


def read_phrases(folder: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the settings and arrays that `write_phrases` wrote to `folder`.

    Raises:
        ValueError: If a file is missing, truncated or altered, or has another format. The message names the file.
    """
    settings_file, arrays_file = Path(folder, SETTINGS_FILE), Path(folder, ARRAYS_FILE)
    try:
        settings = json.loads(_read(settings_file))
        as_written = settings.pop("settings_sha256") == _checksum(settings)
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError):
        settings, as_written = {}, False
    if not as_written:
        raise ValueError(f"{settings_file} has changed since it was written; save the phrase vocabulary again")
    if (version := settings.get("format_version")) != FORMAT_VERSION:
        raise ValueError(
            f"{settings_file} must have format_version {FORMAT_VERSION}, got {version!r}; "
            f"load it with the release of hf_targets that saved it, or build the phrase vocabulary again"
        )
    content = _read(arrays_file)
    if sha256(content).hexdigest() != settings.get("arrays_sha256"):
        raise ValueError(
            f"{arrays_file} ({len(content)} bytes) is truncated or altered, or was not saved together with "
            f"{SETTINGS_FILE}; copy both files again, or save the phrase vocabulary again"
        )
    try:
        return settings, load(content)
    except SafetensorError as error:
        raise ValueError(
            f"{arrays_file} is not a valid safetensors file: {error}; save the phrase vocabulary again"
        ) from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"a saved phrase vocabulary consists of {SETTINGS_FILE} and {ARRAYS_FILE}, and {file} cannot be read "
            f"({error.strerror}); give the folder that the vocabulary was saved to"
        ) from error


def _checksum(settings: dict[str, Any]) -> str:
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
