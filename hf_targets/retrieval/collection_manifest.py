"""The file that says what a folder of documents holds. It is replaced as a whole, so that readers see one state."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from hf_targets.data.atomic_write import written_together

MANIFEST_FILE = "collection.json"
_VERSION = 1


@dataclass(frozen=True)
class ShardEntry:
    """What the manifest says of a shard.

    Attributes:
        name: The beginning of its files' names.
        count: Its rows, deleted ones included.
        num_bytes: The size of each of its two files: vectors, documents.
        deleted: The name of the file that marks deleted rows; None if there are none.
    """

    name: str
    count: int
    num_bytes: tuple[int, int]
    deleted: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a folder of documents holds.

    Attributes:
        fingerprint: Of the encoder.
        shard_size: The most rows of a shard.
        dim: The width of the vectors; None before there are any.
        shards: In the order in which their documents were added.
    """

    fingerprint: str
    shard_size: int
    dim: int | None = None
    shards: tuple[ShardEntry, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Return the manifest of a folder.

        Raises:
            ValueError: If there is none, or it is truncated, altered or of another version.
        """
        path = folder / MANIFEST_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(
                f"{folder} must be a folder that DocumentCollection.create made, and it has no {MANIFEST_FILE}; create "
                f"a collection there, or give another folder"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"{path} is truncated or altered ({error}); restore it or add the documents again"
            ) from error
        version = content.pop("version", None) if isinstance(content, dict) else None
        if version != _VERSION:
            raise ValueError(
                f"{path} must be of version {_VERSION}, got {version!r}; open it with the version of hf-targets that "
                f"wrote it, or add the documents to a new collection"
            )
        try:
            shards = tuple(_entry(**entry) for entry in content.pop("shards"))
            return cls(**content, shards=shards)
        except (TypeError, LookupError, ValueError) as error:
            raise _altered(path, error) from error

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder.

        Raises:
            OSError: If it cannot be written. The old one stays in this case.
        """
        with written_together(folder, MANIFEST_FILE) as unfinished:
            file = unfinished / MANIFEST_FILE
            file.write_text(json.dumps({"version": _VERSION, **asdict(self)}) + "\n", encoding="utf-8")
            sync(file)
        sync(folder)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, for a machine that loses its power."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(name: str, count: int, num_bytes: list[int], deleted: str | None) -> ShardEntry:
    vectors, documents = num_bytes
    if not all(type(number) is int and number > 0 for number in (count, vectors, documents)):
        raise ValueError(f"the sizes of {name} must be positive integers")
    return ShardEntry(str(name), count, (vectors, documents), None if deleted is None else str(deleted))


def _altered(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is truncated or altered ({error}); restore it, or add the documents to a new collection")
