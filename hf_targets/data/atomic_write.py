"""Writing files that belong together, so that none is left incomplete; and one error where files cannot be written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError


@contextmanager
def full_disk_named(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, an OSError that names the folder replaces safetensors' error about a disk that is full."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"{folder} cannot be written ({error}); free space on its disk, or give another folder"
        ) from error


@contextmanager
def written_together(folder: str | os.PathLike[str], *names: str) -> Iterator[Path]:
    """Yield a temporary folder to write the files into; at the end of the `with` block, move them to `folder`.

    `folder` is made if it is missing. Files are moved in the order of `names`. If writing fails, nothing is moved, and
    the files in `folder` stay as they were.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".unfinished-") as unfinished, full_disk_named(folder):
        yield Path(unfinished)
        for name in names:
            os.replace(Path(unfinished, name), folder / name)
