"""Phrase embeddings on disk: a file for each pair of a phrase encoder and a set of phrases."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_targets.data.atomic_write import written_together

_ENDING = ".embeddings.safetensors"

logger = logging.getLogger(__name__)


class PhraseEmbeddingFiles:
    """A folder of phrase embeddings, which several processes may read and write at once.

    A file appears when it is complete, and is never changed. A file that cannot be read, and a folder that cannot be
    written to, cost a log line, and the phrases are encoded again.

    Args:
        folder: It may hold the embeddings of several encoders.
        max_bytes: The largest size of all files; the oldest are removed.
    Raises:
        OSError: If the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes
        self.folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str, shapes: Sequence[tuple[int, int]]) -> list[Tensor] | None:
        """Return the tables that were written under a name, on the CPU; None if there are none of these shapes."""
        file = self.folder / f"{name}{_ENDING}"
        if not file.exists():
            return None
        try:
            tables = [table for _, table in sorted(load_file(file).items())]
        except (OSError, SafetensorError) as error:
            logger.warning("%s cannot be read (%s); its phrases are encoded again", file, error)
            return None
        return tables if [tuple(table.shape) for table in tables] == list(shapes) else None

    def write(self, name: str, tables: Sequence[Tensor]) -> None:
        """Write tables of embeddings, and remove the oldest files if all are too large."""
        file = f"{name}{_ENDING}"
        content = {f"table_{number}": table.cpu().contiguous() for number, table in enumerate(tables)}
        try:
            with written_together(self.folder, file) as unfinished:
                save_file(content, unfinished / file)
            self._remove_oldest()
        except (OSError, SafetensorError) as error:  # safetensors raises its own on a full disk
            logger.warning("phrase embeddings cannot be written to %s (%s); they stay in memory", self.folder, error)

    def _remove_oldest(self) -> None:
        files = [(file.stat(), file) for file in self.folder.glob(f"*{_ENDING}")]
        total = 0
        for about, file in sorted(files, key=lambda one: one[0].st_mtime_ns, reverse=True):
            total += about.st_size
            if total > self.max_bytes:
                file.unlink(missing_ok=True)
