"""Building an index on disk in steps: lists learn from a sample, any process fills shards, and these are merged."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from hf_targets.data.atomic_write import written_together
from hf_targets.extras import require
from hf_targets.retrieval.query_fit import QueryFit
from hf_targets.retrieval.vector_index import empty_index, trained_index
from hf_targets.retrieval.vector_search import Metric, check_fingerprint, matrix

TOLD, VECTORS, INDEX, LISTS, FIT = (
    "disk_index.json",
    "vectors.f16",
    "index.faiss",
    "lists.ivfdata",
    "query_fit.safetensors",
)
_SETTINGS, _TRAINED = "trained.json", "trained.faiss"
_ADDED_AT_ONCE, _COPIED_AT_ONCE = 1 << 14, 1 << 24


class DiskIndexBuilder:
    """Builds the files of a `DiskIndex` in a folder that all processes share.

    A step that was done is not done again, so that a build that was broken off goes on: an existing shard stays. Each
    shard is itself the folder of a `DiskIndex`, whose numbers begin at 0. In the merged one, shard s begins where shard
    s - 1 ends.

    >>> DiskIndexBuilder.train("index", sample, "IVF4096,PQ64")  # doctest: +SKIP
    >>> DiskIndexBuilder("index").fill(0, vectors)  # in any process, for each shard  # doctest: +SKIP
    >>> DiskIndexBuilder("index").merge(num_shards=1)  # doctest: +SKIP
    >>> index = DiskIndex.load("index")  # doctest: +SKIP

    Args:
        folder: Where `train` was called.
    Raises:
        ValueError: If `train` was not called there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.settings = read_told(self.folder / _SETTINGS)

    @classmethod
    def train(
        cls,
        folder: str | os.PathLike[str],
        sample: Tensor,
        factory: str,
        *,
        metric: Metric = "inner_product",
        num_probes: int | None = None,
        fingerprint: Mapping[str, str] | None = None,
        queries: Tensor | None = None,
    ) -> Self:
        """Make the empty lists of an index from a sample of its vectors, (vectors, dim), or leave those that are there.

        Args:
            folder: Made if it is missing.
            sample: Drawn from all shards alike, at least 39 for each list, the least that FAISS asks for.
            factory: FAISS's description of an IVF index, such as "IVF4096,PQ64np": 4,096 lists, and 64 bytes a vector.
                Without "np" FAISS also sorts the codes, which takes minutes and is not used here.
            metric, num_probes, fingerprint: As for `VectorIndex.build`.
            queries: A sample of what will be searched for, (queries, dim), some thousand hidden states of a model: by
                inner products an index finds far more of the nearest if it was fitted to them (`QueryFit`). Vectors in
                the index then have one column more, so that "Pad584,IVF1024,PQ73np" suits a width of 576.
        Raises:
            ValueError: If the factory has no lists, the sample is too small or not a finite float matrix, queries are
                given for distances, or the folder has an index of other settings or another fingerprint.
        """
        folder = Path(folder)
        settings = {"factory": factory, "metric": metric, "num_probes": num_probes, "dim": sample.shape[-1]}
        settings["fitted"] = queries is not None
        if (folder / _SETTINGS).exists():
            builder = cls(folder)
            check_fingerprint(folder, fingerprint, builder.settings["fingerprint"])
            if differ := [name for name, value in settings.items() if builder.settings[name] != value]:
                raise ValueError(f"{folder} is of another {' and '.join(differ)}; give another folder, or remove it")
            return builder
        if queries is not None and metric != "inner_product":
            raise ValueError("an index is fitted to queries by inner products; leave out queries, or metric")
        sample = matrix("the sample", sample)
        fit = None if queries is None else QueryFit.of(queries, sample)
        sample = sample if fit is None else fit.of_vectors(sample)
        lists = _lists_of(empty_index(sample.shape[1], factory, metric))
        least = lists.cp.min_points_per_centroid * max(lists.nlist, lists.pq.ksub if hasattr(lists, "pq") else 1)
        if len(sample) < least:
            raise ValueError(
                f"{factory} learns from {least} vectors or more, {lists.cp.min_points_per_centroid} for each list and "
                f"code, got {len(sample)}; give more, or a factory of fewer lists"
            )
        index = trained_index(sample, factory, metric=metric, num_probes=num_probes)
        with written_together(folder, *([FIT] if fit else []), _TRAINED, _SETTINGS) as unfinished:
            if fit is not None:
                fit.save(unfinished / FIT)
            _write_index(index, unfinished / _TRAINED)
            digest = hashlib.sha256((unfinished / _TRAINED).read_bytes()).hexdigest()
            _write_told(unfinished / _SETTINGS, {**settings, "fingerprint": dict(fingerprint or {}), "lists": digest})
        return cls(folder)

    def shard_folder(self, shard: int) -> Path:
        """Return the folder of a shard, which `DiskIndex.load` opens once it is filled."""
        return self.folder / f"shard-{shard:05d}"

    @property
    def filled(self) -> list[int]:
        """Return the numbers of the shards that are complete."""
        return sorted(int(path.parent.name.rpartition("-")[2]) for path in self.folder.glob(f"shard-*/{TOLD}"))

    def fill(self, shard: int, vectors: Tensor | Iterable[Tensor]) -> None:
        """Write a shard of vectors, (vectors, dim), or leave it if it is complete.

        Its codes are in memory until it is; of the vectors, one part is.

        Args:
            shard: Its number, from 0 on.
            vectors: All of it, or its parts one after the other.
        Raises:
            ValueError: If a part is not a finite float matrix of the sample's width whose values fit float16, or there
                is no vector.
            OSError: If a file cannot be written.
        """
        folder = self.shard_folder(shard)
        if (folder / TOLD).exists():
            return
        index, dim, fit = self._empty_index(), self.settings["dim"], read_fit(self.folder, self.settings)
        with written_together(folder, *self._fit_file, VECTORS, INDEX, TOLD) as unfinished:
            self._copy_fit(unfinished)
            with (unfinished / VECTORS).open("wb") as file:
                for whole in [vectors] if isinstance(vectors, Tensor) else vectors:
                    for part in whole.split(_ADDED_AT_ONCE):
                        rows = matrix("vectors", part)
                        if rows.shape[1] != dim or not (halves := rows.half()).isfinite().all():
                            raise ValueError(
                                f"vectors must have width {dim} and be finite in float16 (at most 65504), got width "
                                f"{rows.shape[1]} and {rows.abs().max():.3g}"
                            )
                        index.add((rows if fit is None else fit.of_vectors(rows)).numpy())
                        file.write(halves.numpy().tobytes())
            if not index.ntotal:
                raise ValueError(f"a shard needs a vector, and shard {shard} has none; leave it out")
            _write_index(index, unfinished / INDEX)
            self._write_complete(unfinished, index)

    def merge(self, num_shards: int, *, keep_shards: bool = False) -> None:
        """Merge shards 0 to `num_shards` - 1 into the files of one index, whose lists are never in memory as a whole.

        Args:
            keep_shards: Leave their files too; otherwise they are removed when the index is complete.
        Raises:
            ValueError: If a shard is missing, or was filled with other lists.
            OSError: If the disk has no room for a copy of all shards, or a file cannot be written.
        """
        folders = [self.shard_folder(shard) for shard in range(num_shards)]
        if not (self.folder / TOLD).exists():
            self._merge(folders)
        if not keep_shards:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _merge(self, folders: list[Path]) -> None:
        if missing := [folder.name for folder in folders if not (folder / TOLD).exists()]:
            raise ValueError(f"{self.folder} lacks {', '.join(missing)}; fill all shards before they are merged")
        for folder in folders:
            if read_told(folder / TOLD)["lists"] != self.settings["lists"]:
                raise ValueError(f"{folder} was filled with other lists; remove it, and fill it again")
        needed = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
        free = shutil.disk_usage(self.folder).free
        if free < needed:  # what is mapped ends the program when the disk is full
            raise OSError(f"merging needs {needed} bytes, and {self.folder} has {free}; free space on its disk")
        index = self._empty_index()
        with written_together(self.folder, *self._fit_file, VECTORS, LISTS, INDEX, TOLD) as unfinished:
            self._copy_fit(unfinished)
            with (unfinished / VECTORS).open("wb") as file:
                for folder in folders:
                    with (folder / VECTORS).open("rb") as part:
                        shutil.copyfileobj(part, file, _COPIED_AT_ONCE)
            _merge_lists(index, [folder / INDEX for folder in folders], unfinished / LISTS)
            _write_index(index, unfinished / INDEX)
            self._write_complete(unfinished, index)

    @property
    def _fit_file(self) -> list[str]:
        return [FIT] if self.settings["fitted"] else []

    def _copy_fit(self, folder: Path) -> None:
        for name in self._fit_file:
            shutil.copyfile(self.folder / name, folder / name)

    def _write_complete(self, folder: Path, index: Any) -> None:
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        _write_told(folder / TOLD, {**self.settings, "num_vectors": index.ntotal, "files": sizes})

    def _empty_index(self) -> Any:
        faiss = require("faiss", extra="phrases")
        return faiss.read_index(os.fspath(self.folder / _TRAINED))


def _lists_of(index: Any) -> Any:
    """Return the part of an index that has its lists, if these can stay on disk."""
    faiss = require("faiss", extra="phrases")
    try:
        lists = faiss.downcast_index(faiss.extract_index_ivf(index))
        if isinstance(faiss.downcast_InvertedLists(lists.invlists), faiss.ArrayInvertedLists):
            return lists
    except RuntimeError:  # FAISS's, if there are none
        pass
    raise ValueError(f'an index on disk needs lists of plain codes, as "IVF4096,PQ64" has, got {type(index).__name__}')


def _merge_lists(index: Any, files: list[Path], merged: Path) -> None:
    """Give an empty index the lists of shards, merged in a file; their numbers go on from shard to shard.

    As `faiss.contrib.ondisk.merge_ondisk`, whose shards stay mapped, and whose shifted numbers are right only where all
    shards have one size.
    """
    faiss = require("faiss", extra="phrases")
    shards, whole = [faiss.read_index(os.fspath(file), faiss.IO_FLAG_MMAP) for file in files], _lists_of(index)
    parts, pointers = [faiss.extract_index_ivf(shard).invlists for shard in shards], faiss.InvertedListsPtrVector()
    for part in parts:
        pointers.push_back(part)
    lists = faiss.OnDiskInvertedLists(whole.nlist, whole.code_size, os.fspath(merged))
    index.ntotal = whole.ntotal = lists.merge_from_multiple(pointers.data(), pointers.size())
    whole.replace_invlists(lists, True)
    lists.this.disown()
    starts = np.cumsum([0, *(shard.ntotal for shard in shards)])[:-1]
    for number in range(lists.nlist):
        if size := lists.list_size(number):
            numbers = faiss.rev_swig_ptr(lists.get_ids(number), size)
            numbers += np.repeat(starts, [part.list_size(number) for part in parts])


def read_fit(folder: Path, told: Mapping[str, Any]) -> QueryFit | None:
    """Return what an index in a folder was fitted to, by what is told of it."""
    return QueryFit.load(folder / FIT) if told["fitted"] else None


def read_told(path: Path) -> dict[str, Any]:
    """Return what a JSON file tells of an index.

    Raises:
        ValueError: If there is none, or it is damaged.
    """
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is missing or damaged ({error!r}); build the index with DiskIndexBuilder") from error


def _write_told(path: Path, told: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def _write_index(index: Any, path: Path) -> None:
    faiss = require("faiss", extra="phrases")
    with path.open("wb") as file:  # FAISS itself does not tell of a full disk
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
