"""One state of a document collection, which readers keep while a writer makes the next, and the lock for writers."""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from filelock import FileLock, Timeout

from hf_targets.data.atomic_write import UNFINISHED
from hf_targets.retrieval.collection_manifest import Manifest
from hf_targets.retrieval.collection_shards import OURS, Shard, id_hashes

_LOCK_FILE = "writer.lock"


@dataclass(frozen=True, eq=False)
class CollectionState:
    """What a collection holds at one time.

    Attributes:
        manifest: The file that says so.
        shards: In the order in which their documents were added.
    """

    manifest: Manifest
    shards: tuple[Shard, ...]

    @classmethod
    def read(cls, folder: Path, opened: Iterable[Shard] = ()) -> "CollectionState":
        """Return the state of a folder now.

        Args:
            opened: Shards that need not be opened again.
        Raises:
            ValueError: If the folder is not a collection, or a file is missing, truncated, altered or of another
                version.
        """
        known = {shard.entry: shard for shard in opened}
        manifest = Manifest.read(folder)
        while True:
            try:
                shards = (known.get(entry) or Shard.open(folder, entry, manifest.dim) for entry in manifest.shards)
                return cls(manifest, tuple(shards))
            except FileNotFoundError as error:
                before, manifest = manifest, Manifest.read(folder)
                if manifest == before:  # else a writer has replaced the shard by another
                    raise ValueError(
                        f"a file of {folder} is missing ({error}); restore it, or add the documents to a new collection"
                    ) from error

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def find(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the number of the shard, and the row in it, of those of some ids that are there."""
        hashes, found = id_hashes(names), {}
        for number, shard in enumerate(self.shards):
            found |= {names[index]: (number, row) for index, row in shard.rows_of(names, hashes)}
        return found


@contextmanager
def only_writer(folder: Path, seconds: float) -> Iterator[None]:
    """Keep other writers out, and remove the files of unfinished writes and of former states, before and after.

    Args, Raises: As `locked`.
    """
    with locked(folder, seconds):
        _remove_leftovers(folder)
        try:
            yield
        finally:
            _remove_leftovers(folder)


@contextmanager
def locked(folder: Path, seconds: float) -> Iterator[None]:
    """Keep other writers out of a folder.

    Args:
        seconds: How long to wait for another writer.
    Raises:
        ValueError: If another writer does not end in time.
        OSError: If the disk is full or cannot be written to.
    """
    try:
        with FileLock(folder / _LOCK_FILE, timeout=seconds):
            yield
    except Timeout as error:
        raise ValueError(
            f"a collection must have one writer at a time, and another has been writing to {folder} for {seconds} "
            f"seconds; wait for it, or raise writer_timeout"
        ) from error
    except OSError as error:
        raise OSError(
            error.errno or errno.EIO,
            f"the documents in {folder} stay as they were ({error}); make room on the disk, or mend what the error "
            f"names, and call again",
        ) from error


def _remove_leftovers(folder: Path) -> None:
    """Remove the files of a collection that its manifest does not name."""
    manifest = Manifest.read(folder)
    marks = {entry.deleted for entry in manifest.shards}
    names = {entry.name for entry in manifest.shards}
    for path in folder.iterdir():
        if OURS.fullmatch(path.name) and path.name not in marks and path.stem not in names:
            with suppress(OSError):  # on Windows while a reader has it open; the next writer tries again
                path.unlink()
    for unfinished in folder.glob(f"{UNFINISHED}*"):
        rmtree(unfinished, ignore_errors=True)
