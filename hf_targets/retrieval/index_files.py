"""A FAISS index on disk, with a JSON file of the settings that it was built with and the hash of its file."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_targets.data.atomic_write import written_together
from hf_targets.extras import require

_VERSION = 1
_KEYS = {"mode", "dim", "count", "num_probes", "fingerprint", "sha256"}


def write_index(folder: str | os.PathLike[str], name: str, index: Any, settings: Mapping[str, Any]) -> None:
    """Write `index` and its `settings` to `folder`, made if missing; a failure leaves what was there.

    Args:
        name: Of both files, without their endings.
    Raises:
        OSError: If a file cannot be written, as on a full disk.
    """
    index_file, settings_file = _file_names(name)
    with written_together(folder, index_file, settings_file) as unfinished:
        told = {"version": _VERSION, **settings, "sha256": write_faiss(index, unfinished / index_file)}
        (unfinished / settings_file).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def write_faiss(index: Any, path: Path) -> str:
    """Write a FAISS index to a file, and return the file's SHA-256.

    The file is Python's own: FAISS does not tell when the end of its file did not fit on the disk.

    Raises:
        OSError: If the file cannot be written.
    """
    faiss, digest = require("faiss", extra="phrases"), hashlib.sha256()
    with path.open("wb") as file:

        def write(part: bytes) -> None:
            digest.update(part)
            file.write(part)

        faiss.write_index(index, faiss.PyCallbackIOWriter(write))
    return digest.hexdigest()


def read_index(folder: str | os.PathLike[str], name: str, fingerprint: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """Return the index in `folder` and its settings, if they are whole and have this `fingerprint`.

    Raises:
        ValueError: If a file is missing, truncated, altered, of another version or another kind of index, or the
            fingerprint differs.
    """
    faiss = require("faiss", extra="phrases")
    path, settings_path = (Path(folder, file) for file in _file_names(name))
    settings = _read_settings(settings_path)
    wanted, built_with = dict(fingerprint), settings["fingerprint"]
    if wanted != built_with:
        names = sorted(name for name in {*wanted, *built_with} if wanted.get(name) != built_with.get(name))
        told = "; ".join(f"{name} {built_with.get(name)!r}, and not {wanted.get(name)!r}" for name in names)
        raise ValueError(
            f"{settings_path} is of an index built with {told}; load it with what it was built with, or build it again"
        )
    if not path.is_file():
        raise ValueError(f"{path} is missing; build the index again and save it")
    if _sha256(path) != settings["sha256"]:
        raise ValueError(
            f"{path} is truncated or altered: it is not the file that {settings_path} tells of; build the index again"
        )
    try:
        index = faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"{path} is not a whole FAISS index ({error}); build the index again") from error
    if type(index) not in (faiss.IndexFlatIP, faiss.IndexIVFFlat) or index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ValueError(
            f"{path} must be an index of inner products, flat or in lists, got a {type(index).__name__}; build the "
            "index again"
        )
    lists = index.nlist if isinstance(index, faiss.IndexIVF) else None
    found = {"mode": "exact" if lists is None else "ivf", "dim": index.d, "count": index.ntotal}
    told = {name: settings[name] for name in found}
    if told != found or settings["num_probes"] not in ([None] if lists is None else range(1, lists + 1)):
        told["num_probes"] = settings["num_probes"]
        raise ValueError(f"{settings_path} is altered: it tells {told} of an index with {found}; build the index again")
    return index, settings


def _file_names(name: str) -> tuple[str, str]:
    return f"{name}.faiss", f"{name}.json"


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is missing; give the folder that save wrote")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is truncated or altered ({error}); build the index again") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is altered: it must hold settings by name; build the index again")
    if settings.get("version") != _VERSION:
        raise ValueError(
            f"{path} must be of version {_VERSION}, got {settings.get('version')!r}; build the index again"
        )
    if not settings.keys() >= _KEYS or not isinstance(settings["fingerprint"], dict):
        raise ValueError(f"{path} is altered: it must tell {', '.join(sorted(_KEYS))}; build the index again")
    return settings


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
