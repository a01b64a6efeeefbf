"""Files of phrase embeddings. A file is written once, renamed into place when it is complete, and then only read."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hf_targets.data.atomic_write import written_together

SUFFIX = ".embeddings.safetensors"
_FORMAT = "1"


def hashes_of(keys: Sequence[bytes]) -> np.ndarray:
    """Return a 128-bit hash of each key as two numbers, (keys, 2) uint64."""
    return np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, keys)), np.uint64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class EmbeddingSegment:
    """The embeddings in one file, sorted by the hashes of their phrases, and mapped into memory.

    Attributes:
        file: The file.
        hashes: (phrases, 2) uint64, sorted by the first column.
        checksums: (phrases,) uint64, of the hash and the embeddings of each phrase.
        tables: (phrases, width) each: the input embeddings, and the output embeddings unless the two are tied.
        num_bytes: Of the file when it was opened.
    """

    file: Path
    hashes: np.ndarray
    checksums: np.ndarray
    tables: tuple[Tensor, ...]
    num_bytes: int

    @classmethod
    def open(cls, file: Path, fingerprint: str, widths: Sequence[int]) -> "EmbeddingSegment":
        """Return the segment in a file.

        Args:
            fingerprint: Of the encoder.
            widths: The width of each table.
        Raises:
            ValueError: If the file is truncated, has another format, or is of another encoder.
            OSError: If the file cannot be read; FileNotFoundError if another process has removed it.
        """
        num_bytes = file.stat().st_size
        try:
            with safe_open(file, "pt") as content:
                about = content.metadata() or {}
                if (about.get("format"), about.get("encoder")) != (_FORMAT, fingerprint):
                    raise ValueError("it has another format, or is of another phrase encoder")
                names = ["hashes", "checksums", *(f"table_{number}" for number in range(len(widths)))]
                hashes, checksums, *tables = (content.get_tensor(name) for name in names)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        except RuntimeError as error:  # of torch, which opens by its name the file that safetensors has open
            raise (OSError if file.exists() else FileNotFoundError)(str(error)) from error
        count = len(checksums)
        shapes = [(count, 2), (count,), *((count, width) for width in widths)]
        if not count or [tuple(tensor.shape) for tensor in (hashes, checksums, *tables)] != shapes:
            raise ValueError(f"its tensors do not have the shapes {shapes}")
        found, sums = (part.numpy().view(np.uint64) for part in (hashes, checksums))
        return cls(file, found, sums, tuple(tables), num_bytes)

    def check_size(self) -> None:
        """Check that the file was not cut short since it was opened: to read what is gone would end the process.

        Raises:
            ValueError: If it was. A file that another process has removed stays readable.
        """
        with suppress(FileNotFoundError):
            if (now := self.file.stat().st_size) < self.num_bytes:
                raise ValueError(f"it was cut from {self.num_bytes} to {now} bytes")

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return the row of each hash (n, 2) in this segment, (n,); -1 where there is none."""
        rows = np.searchsorted(self.hashes[:, 0], hashes[:, 0]).clip(max=len(self.hashes) - 1)
        return np.where((self.hashes[rows] == hashes).all(axis=1), rows, -1)

    def read(self, rows: np.ndarray) -> tuple[Tensor, ...]:
        """Return the embeddings of some rows, (rows, width) for each table.

        Raises:
            ValueError: If the file has changed since it was written.
        """
        tables = tuple(table[torch.from_numpy(rows)] for table in self.tables)
        if not np.array_equal(_checksums(self.hashes[rows], tables), self.checksums[rows]):
            raise ValueError("its content has changed since it was written")
        return tables


def write_segment(folder: Path, name: str, fingerprint: str, hashes: np.ndarray, tables: Sequence[Tensor]) -> None:
    """Write embeddings to the file `name` + `SUFFIX` in a folder, which appears there only when it is complete.

    Args:
        fingerprint: Of the encoder.
        hashes: (phrases, 2) uint64.
        tables: (phrases, width) each.
    Raises:
        OSError: If the file cannot be written.
    """
    order = np.argsort(hashes[:, 0], kind="stable")
    hashes, tables = hashes[order], [table[torch.from_numpy(order)].contiguous() for table in tables]
    _write(folder, name, fingerprint, hashes, _checksums(hashes, tables), tables)


def merge_segments(name: str, fingerprint: str, segments: Sequence[EmbeddingSegment]) -> None:
    """Write the phrases of several segments of a folder to one file, then remove their files.

    Raises:
        OSError: If the file cannot be written. No file is removed in this case.
    """
    hashes = np.concatenate([segment.hashes for segment in segments])
    checksums = np.concatenate([segment.checksums for segment in segments])
    _, chosen = np.unique(hashes[:, 0], return_index=True)
    tables = [
        torch.cat(parts)[torch.from_numpy(chosen)] for parts in zip(*(one.tables for one in segments), strict=True)
    ]
    _write(segments[0].file.parent, name, fingerprint, hashes[chosen], checksums[chosen], tables)
    remove_files(segment.file for segment in segments)


def joined(tables: Sequence[Tensor]) -> Tensor:
    """Return the rows of all tables; the table itself if it is the only one, which saves a copy."""
    return tables[0] if len(tables) == 1 else torch.cat(list(tables))


def remove_files(files: Iterable[Path]) -> None:
    """Remove files, some of which another process may remove at the same time."""
    for file in files:
        file.unlink(missing_ok=True)


def _write(
    folder: Path, name: str, fingerprint: str, hashes: np.ndarray, checksums: np.ndarray, tables: Sequence[Tensor]
) -> None:
    content = {f"table_{number}": table for number, table in enumerate(tables)}
    content |= {
        "hashes": torch.from_numpy(hashes.view(np.int64)),
        "checksums": torch.from_numpy(checksums.view(np.int64)),
    }
    file = f"{name}{SUFFIX}"
    try:
        with written_together(folder, file) as unfinished:
            save_file(content, os.path.join(unfinished, file), {"format": _FORMAT, "encoder": fingerprint})
    except SafetensorError as error:  # which safetensors raises on a full disk
        raise OSError(str(error)) from error


def _checksums(hashes: np.ndarray, tables: Sequence[Tensor]) -> np.ndarray:
    """Return a checksum of the hash and the embeddings of each phrase, (phrases,) uint64."""
    sums = hashes[:, 1].tolist()
    for table in tables:
        kind = xxhash.xxh3_64_intdigest(str(table.dtype).encode())
        rows = table.contiguous().view(torch.uint8).numpy()
        sums = [xxhash.xxh3_64_intdigest(row, kind ^ seed) for row, seed in zip(rows, sums, strict=True)]
    return np.array(sums, np.uint64)
