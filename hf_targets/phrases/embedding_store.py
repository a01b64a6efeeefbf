"""Phrase embeddings on disk: computed once, and read by later processes that load the same phrase encoder."""

import logging
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
from torch import Tensor

from hf_targets.data.atomic_write import UNFINISHED
from hf_targets.phrases.embedding_segments import (
    SUFFIX,
    EmbeddingSegment,
    hashes_of,
    joined,
    merge_segments,
    remove_files,
    write_segment,
)

MAX_SEGMENTS = 16  # of an encoder, before the smallest ones are merged
_SHARE = 8  # a file takes at most this part of the store, so that the oldest can go one by one
_LISTINGS = 8  # of a folder whose files other processes merge
_ABANDONED = 3600.0  # seconds after which an unfinished file was left by a process that ended

logger = logging.getLogger(__name__)


class PhraseEmbeddingStore:
    """A folder of phrase embeddings, by the tokens of the phrases and the fingerprint of the phrase encoder.

    Several processes may read and write it at once, and may be killed at any time: a file appears in the folder when it
    is complete, and is never changed. A file that is damaged, or of another encoder, is passed over with a log line.
    If the folder cannot be written to, the store goes on without it, with one log line.

    Embeddings are found by 128-bit hashes of the tokens, and each has a checksum, which is compared when it is read.

    Args:
        folder: The folder, which is made if it is missing. It may hold the embeddings of several encoders.
        max_bytes: The largest size of all files in the folder. The oldest files are removed.
    Raises:
        ValueError: If `folder` is not a folder and cannot be made, or `max_bytes` is not a positive integer.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = 4 * 2**30) -> None:
        if type(max_bytes) is not int or max_bytes < 1:
            raise ValueError(
                f"max_bytes must be a positive integer, got {max_bytes!r}; give the bytes that may be used"
            )
        self.folder, self.max_bytes = Path(folder), max_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"a folder of phrase embeddings must exist or be possible to make, and {self.folder} cannot be made "
                f"({error.strerror}); give another folder"
            ) from error
        self._writes = True
        self._opened: dict[Path, EmbeddingSegment] = {}
        self._refused: set[Path] = set()

    def __reduce__(self) -> tuple:
        return PhraseEmbeddingStore, (self.folder, self.max_bytes)

    def read(
        self, fingerprint: str, keys: Sequence[bytes], widths: Sequence[int]
    ) -> tuple[np.ndarray, tuple[Tensor, ...]] | None:
        """Return the embeddings of those phrases that are in the store; None if none is.

        Args:
            fingerprint: The `embedding_fingerprint` of the encoder.
            keys: The bytes of the token ids of each phrase.
            widths: The width of each table: of the input embeddings, and of the output embeddings unless they are tied.
        Returns: The indices of the phrases in `keys`, and for each table (phrases found, width) on the CPU.
        """
        hashes, missing = hashes_of(keys), np.arange(len(keys))
        found, parts = [], []
        for segment in self._segments(fingerprint, widths):
            rows = segment.find(hashes[missing])
            if (rows < 0).all():
                continue
            try:
                parts.append(segment.read(rows[rows >= 0]))
            except ValueError as error:
                self._refuse(segment.file, error)
                continue
            found.append(missing[rows >= 0])
            missing = missing[rows < 0]
        if not found:
            return None
        return np.concatenate(found), tuple(joined(tables) for tables in zip(*parts, strict=True))

    def write(self, fingerprint: str, keys: Sequence[bytes], tables: Sequence[Tensor]) -> None:
        """Add phrases; of more than fit into `max_bytes`, the first ones.

        Args:
            fingerprint: The `embedding_fingerprint` of the encoder.
            keys: The bytes of the token ids of each phrase.
            tables: (phrases, width) each, as for `read`.
        """
        each = sum(table[0].nbytes for table in tables) + 24 if keys else 1
        count, at_once = min(len(keys), self.max_bytes // each), max(1, self.max_bytes // _SHARE // each)
        if not (self._writes and count):
            return
        folder, hashes = self.folder / fingerprint, hashes_of(keys)
        try:
            for start in range(0, count, at_once):
                part = slice(start, min(start + at_once, count))
                write_segment(folder, _new_name(), fingerprint, hashes[part], [table[part].cpu() for table in tables])
            self._tidy(fingerprint, [table.shape[1] for table in tables])
        except OSError as error:
            self._writes = False
            logger.warning("phrase embeddings are no longer written to %s (%s); generation continues", folder, error)

    def _segments(self, fingerprint: str, widths: Sequence[int]) -> list[EmbeddingSegment]:
        """Return the valid segments of an encoder, the newest first.

        Where another process removes a file between listing and opening, it may have merged it into one that was not
        listed: the folder is then listed again.
        """
        files, opened = [], {}
        for _ in range(_LISTINGS):
            files, vanished = sorted(self.folder.glob(f"{fingerprint}/*{SUFFIX}"), reverse=True), False
            opened = {file: self._opened[file] for file in files if file in self._opened}
            for file in files:
                if file not in self._refused:
                    try:
                        if file not in opened:
                            opened[file] = EmbeddingSegment.open(file, fingerprint, widths)
                        opened[file].check_size()
                    except FileNotFoundError:
                        vanished = True
                    except (ValueError, OSError) as error:
                        self._refuse(file, error)
            self._opened = opened
            if not vanished:
                break
        return [opened[file] for file in files if file in opened and file not in self._refused]

    def _refuse(self, file: Path, error: Exception) -> None:
        self._refused.add(file)
        logger.warning("%s has no embeddings that can be used (%s), and is passed over", file, error)

    def _tidy(self, fingerprint: str, widths: Sequence[int]) -> None:
        """Merge the smallest files of an encoder if there are many, and remove the oldest if the store is full."""
        segments = self._segments(fingerprint, widths)
        if len(segments) > MAX_SEGMENTS:
            sizes = {segment: _size(segment.file) for segment in segments}
            segments.sort(key=sizes.__getitem__)
            together = np.cumsum([sizes[segment] for segment in segments])
            merged = segments[: np.searchsorted(together, self.max_bytes // _SHARE, side="right")]
            if len(merged) > 1:
                newest = max(segment.file.name for segment in merged)
                merge_segments(_new_name(int(newest.split("-")[0])), fingerprint, merged)
        for unfinished in self.folder.glob(f"*/{UNFINISHED}*"):
            with suppress(FileNotFoundError):  # another process has completed it
                if time.time() - unfinished.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(unfinished, ignore_errors=True)
        files = sorted(self.folder.glob(f"*/*{SUFFIX}"), key=lambda file: file.name, reverse=True)
        together = np.cumsum([_size(file) for file in files])
        remove_files(file for file, size in zip(files, together, strict=True) if size > self.max_bytes)


def _new_name(time_ns: int | None = None) -> str:
    """Return a new file name without its ending. Names sort by time, that of the newest phrases in the file."""
    return f"{time.time_ns() if time_ns is None else time_ns:020d}-{uuid4().hex[:12]}"


def _size(file: Path) -> int:
    """Return the bytes of a file; 0 if another process has removed it."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
