"""Shards of a document collection: files that are written once, and then read through memory maps."""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import torch
import xxhash
from torch import Tensor

from hf_targets.extras import require
from hf_targets.retrieval.collection_manifest import ShardEntry, sync
from hf_targets.retrieval.index_files import write_faiss

OURS = re.compile(r"shard-[0-9a-f]{32}(-[0-9a-f]{16})?\.(faiss|arrow|deleted)")
"""The names of all files of shards."""
_VECTORS, _DOCUMENTS, _DELETED = ".faiss", ".arrow", ".deleted"
_SCHEMA = pa.schema(
    [("id", pa.large_string()), ("text", pa.large_string()), ("sorted_hash", pa.uint64()), ("row", pa.int64())]
)  # the last two: the hashes of the ids in ascending order, and the row of each


def id_hashes(names: Sequence[str]) -> np.ndarray:
    """Return a 64-bit hash of each id, (ids,) uint64."""
    return np.array([xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) for name in names], np.uint64)


@dataclass(frozen=True, eq=False)
class Shard:
    """A shard whose files are mapped into memory: opening it reads next to nothing of them.

    Where another process removes the files, they stay readable here until the shard is dropped.

    Attributes:
        entry: What the manifest says of it.
        index: A FAISS index of inner products, `IndexFlatIP`.
        documents: An Arrow record batch, of `_SCHEMA`.
        keep: (rows,) bool, false for deleted rows.
    """

    entry: ShardEntry
    index: Any
    documents: pa.RecordBatch
    keep: Tensor

    @classmethod
    def open(cls, folder: Path, entry: ShardEntry, dim: int | None) -> "Shard":
        """Return the shard of an entry.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If a file is truncated, or not what the manifest says. What its vectors and texts are is not
                checked, as that would read all of them.
        """
        faiss = require("faiss", extra="phrases")
        paths = [folder / f"{entry.name}{ending}" for ending in (_VECTORS, _DOCUMENTS)]
        for path, num_bytes in zip(paths, entry.num_bytes, strict=True):
            if path.stat().st_size != num_bytes:
                raise _damaged(path, f"it must have {num_bytes} bytes, got {path.stat().st_size}")
        try:
            index = faiss.read_index(str(paths[0]), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            paths[0].stat()  # raises if a writer has just removed it
            raise _damaged(paths[0], str(error)) from error
        if (type(index), index.ntotal, index.d) != (faiss.IndexFlatIP, entry.count, dim):
            raise _damaged(paths[0], f"it must be an IndexFlatIP of {entry.count} vectors of width {dim}")
        try:
            documents = pa.ipc.open_file(pa.memory_map(str(paths[1]))).get_batch(0)
            documents.validate()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise _damaged(paths[1], str(error)) from error
        if documents.schema != _SCHEMA or documents.num_rows != entry.count:
            raise _damaged(paths[1], f"it must have {entry.count} documents")
        return cls(entry, index, documents, _read_marks(folder, entry))

    def __len__(self) -> int:
        return int(self.keep.sum())

    @cached_property
    def vectors(self) -> Tensor:
        """The vectors of all rows, (rows, dim), in the mapped file: only to be read, while the shard is there."""
        flat = require("faiss", extra="phrases").rev_swig_ptr(self.index.get_xb(), self.index.ntotal * self.index.d)
        return torch.from_numpy(flat).view(self.index.ntotal, self.index.d)

    @cached_property
    def _sorted_hashes(self) -> np.ndarray:
        return self.documents["sorted_hash"].to_numpy()

    def content(self) -> tuple[list[str], list[str], Tensor]:
        """Return the ids, the texts and the vectors (documents, dim) of the rows that are not deleted."""
        rows = self.keep.numpy().nonzero()[0]
        names, texts = (self.documents[column].take(pa.array(rows)).to_pylist() for column in ("id", "text"))
        return names, texts, self.vectors[torch.from_numpy(rows)]

    def names(self) -> Iterator[str]:
        """Yield the ids of the rows that are not deleted, in order."""
        return map(self.id, self.keep.numpy().nonzero()[0].tolist())

    def id(self, row: int) -> str:
        """Return the id of a row."""
        return self.documents["id"][row].as_py()

    def text(self, row: int) -> str:
        """Return the text of a row."""
        return self.documents["text"][row].as_py()

    def rows_of(self, names: Sequence[str], hashes: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield for each id that is in this shard, and not deleted, its index in `names` and its row.

        Args:
            names: Ids.
            hashes: Their `id_hashes`.
        """
        firsts = np.searchsorted(self._sorted_hashes, hashes, side="left")
        stops = np.searchsorted(self._sorted_hashes, hashes, side="right")
        for number in np.flatnonzero(firsts < stops).tolist():
            for place in range(firsts[number], stops[number]):
                row = self.documents["row"][place].as_py()
                if self.keep[row] and self.id(row) == names[number]:
                    yield number, row

    def without(self, folder: Path, rows: Sequence[int]) -> "Shard":
        """Return this shard with some more rows deleted, for which it writes a new file of marks.

        Raises:
            OSError: If the file cannot be written.
        """
        keep = self.keep.clone()
        keep[torch.tensor(rows)] = False
        marks = np.packbits(~keep.numpy()).tobytes()
        name = f"{self.entry.name}-{xxhash.xxh3_64_hexdigest(marks)}{_DELETED}"
        (folder / name).write_bytes(marks)
        sync(folder / name)
        return dataclasses.replace(self, keep=keep, entry=dataclasses.replace(self.entry, deleted=name))


def write_shard(folder: Path, names: Sequence[str], texts: Sequence[str], vectors: Tensor) -> Shard:
    """Write a shard of some documents, and return it opened.

    Args:
        vectors: (documents, dim), float32.
    Raises:
        OSError: If a file cannot be written. What was written of it stays.
    """
    faiss = require("faiss", extra="phrases")
    name = f"shard-{uuid4().hex}"
    vectors_path, documents_path = folder / f"{name}{_VECTORS}", folder / f"{name}{_DOCUMENTS}"
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.numpy())
    write_faiss(index, vectors_path)
    hashes = id_hashes(names)
    order = np.argsort(hashes, kind="stable")
    columns = (names, texts, hashes[order], order)
    batch = pa.record_batch(list(map(pa.array, columns, _SCHEMA.types)), schema=_SCHEMA)
    with pa.OSFile(str(documents_path), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        writer.write_batch(batch)
    sync(vectors_path)
    sync(documents_path)
    sizes = (os.path.getsize(vectors_path), os.path.getsize(documents_path))
    return Shard.open(folder, ShardEntry(name, len(names), sizes), vectors.shape[1])


def _read_marks(folder: Path, entry: ShardEntry) -> Tensor:
    if entry.deleted is None:
        return torch.ones(entry.count, dtype=torch.bool)
    path = folder / entry.deleted
    marks = path.read_bytes()
    if xxhash.xxh3_64_hexdigest(marks) not in path.name:
        raise _damaged(path, "its content must have the checksum in its name")
    return torch.from_numpy(np.unpackbits(np.frombuffer(marks, np.uint8), count=entry.count) == 0)


def _damaged(path: Path, rule: str) -> ValueError:
    return ValueError(f"{path} is truncated or altered: {rule}; restore it, or add the documents to a new collection")
