"""Errors that name the weight file that cannot be read, which the errors of safetensors do not."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.utils.hub import cached_file

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


@contextmanager
def broken_files_named(name: str | PathLike, loading: Mapping[str, Any]) -> Iterator[None]:
    """Inside the `with` block, replace the error of a broken weight file by an error that names the file.

    Args:
        name: The checkpoint that is loaded: a folder, or a repository of the Hub.
        loading: The arguments of `from_pretrained`; only those that give the location on the Hub are used.
    Raises:
        ValueError: If a file of weights is cut short or missing.
    """
    try:
        yield
    except (SafetensorError, FileNotFoundError, json.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
        if (problem := _what_is_broken(_folder(name, loading))) is None:
            raise
        raise ValueError(f"{problem}; copy or download the checkpoint again") from error


def _folder(name: str | PathLike, loading: Mapping[str, Any]) -> Path:
    """Return the folder of the weight files: for a repository of the Hub, the folder of the downloaded files."""
    folder = Path(name, loading.get("subfolder") or "")
    if folder.is_dir():
        return folder
    where = {key: loading[key] for key in ("cache_dir", "revision", "subfolder") if loading.get(key)}
    quiet = dict.fromkeys(("_raise_exceptions_for_missing_entries", "_raise_exceptions_for_connection_errors"), False)
    config = cached_file(name, "config.json", local_files_only=True, **where, **quiet)
    return folder if config is None else Path(config).parent


def _what_is_broken(folder: Path) -> str | None:
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
            missing = sorted(shard for shard in shards if not Path(folder, shard).is_file())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return f"{index} is not a whole index of shards ({type(error).__name__}: {error})"
        if missing:
            return f"{folder / missing[0]} is missing, and {index.name} names it"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            return f"{file} is not a whole safetensors file: {error}"
    return None
