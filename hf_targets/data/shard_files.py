"""Numbered Arrow files, one a shard, each written whole and each telling the settings that it depends on."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hf_targets.data.atomic_write import written_together

_TOLD = b"hf_targets"


class ShardFiles:
    """The files `KIND-00000.arrow`, `KIND-00001.arrow`, ... of a folder.

    A file appears when it is complete. Reading maps it into memory. Several processes may write, each its own shards.

    Args:
        folder: Made when something is written.
        kind: Of the content, such as "passages".
        told: What the content depends on, by names; values that JSON has.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: str, told: Mapping[str, Any]) -> None:
        self.folder, self.kind, self.told = Path(folder), kind, json.loads(json.dumps(told))

    def path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return self.folder / f"{self.kind}-{shard:05d}.arrow"

    def missing(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """Return those of some shards that have no file yet.

        Raises:
            ValueError: If a file is of other settings, or damaged.
        """
        there = {shard for shard in sizes if self.path(shard).exists()}
        for shard in there:
            self._open(shard)
        return {shard: size for shard, size in sizes.items() if shard not in there}

    def write(self, shard: int, parts: Sequence[pa.RecordBatch]) -> None:
        """Write a shard, which can then be read as a whole or part by part; there is one part at least.

        Raises:
            OSError: If the disk is full; nothing of the shard is left then.
        """
        told = {_TOLD: json.dumps(self.told).encode()}
        name, schema = self.path(shard).name, parts[0].schema.with_metadata(told)
        with (
            written_together(self.folder, name) as unfinished,
            pa.OSFile(os.fspath(unfinished / name), "wb") as file,
            pa.ipc.new_file(file, schema) as writer,
        ):
            for part in parts:
                writer.write_batch(part)

    def read(self, shard: int) -> pa.Table:
        """Return the content of a shard, whose memory is the file's."""
        return self._open(shard).read_all()

    def read_part(self, shard: int, part: int) -> pa.RecordBatch:
        """Return one part of a shard."""
        return self._open(shard).get_batch(part)

    def _open(self, shard: int) -> pa.RecordBatchFileReader:
        path = self.path(shard)
        try:
            reader = pa.ipc.open_file(pa.memory_map(os.fspath(path)))
            told = json.loads((reader.schema.metadata or {}).get(_TOLD, b"null"))
        except (OSError, ValueError) as error:
            told = f"{path} is missing or damaged ({error}); run the step that makes it, without the file"
            raise ValueError(told) from error
        if told != self.told:
            told = told or {}
            differ = sorted(name for name in {*told, *self.told} if told.get(name) != self.told.get(name))
            raise ValueError(
                f"shards must be of the same settings, and {path} is of another {', '.join(differ)}; give another "
                "folder, or remove the files of the other settings"
            )
        return reader
