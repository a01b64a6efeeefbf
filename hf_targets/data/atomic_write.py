"""Writing files that belong together, so that none is left incomplete; and one error where files cannot be written."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError

_PREFIX, _SECONDS = ".unfinished-", 3600


@contextmanager
def full_disk_named(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, an OSError that names the folder replaces safetensors' error about a disk that is full."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"{folder} cannot be written ({error}); free space on its disk, or give another folder"
        ) from error


def _is_left_over(folder: Path) -> bool:
    """Return whether a folder and its files have not changed for an hour; False if it is being removed."""
    with suppress(FileNotFoundError):
        return max(one.stat().st_mtime for one in (folder, *folder.rglob("*"))) < time.time() - _SECONDS
    return False


@contextmanager
def written_together(folder: str | os.PathLike[str], *names: str) -> Iterator[Path]:
    """Yield a temporary folder to write the files into; at the end of the `with` block, move them to `folder`.

    `folder` is made if it is missing. Files are moved in the order of `names`. If writing fails, nothing is moved, and
    the files in `folder` stay as they were. What a killed process left unfinished is removed an hour later, by the next
    call: others may be writing to the folder now.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_PREFIX}*"):
        if _is_left_over(left):
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=folder, prefix=_PREFIX) as unfinished, full_disk_named(folder):
        yield Path(unfinished)
        for name in names:
            os.replace(Path(unfinished, name), folder / name)
