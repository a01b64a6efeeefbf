"""Files that belong together, written so that none is ever half there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def written_together(folder: str | os.PathLike[str], *names: str) -> Iterator[Path]:
    """Give a folder to write files into; at the end of the `with` they take their places in `folder`, in this order.

    `folder` is made if it is missing. If writing fails, what was in it stays as it was.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".unfinished-") as unfinished:
        yield Path(unfinished)
        for name in names:
            os.replace(Path(unfinished, name), folder / name)
