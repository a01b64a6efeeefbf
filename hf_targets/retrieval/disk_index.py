"""Vectors that stay on disk: an index proposes candidates by their codes, and the vectors themselves decide."""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from hf_targets.extras import require
from hf_targets.retrieval.disk_index_builder import INDEX, LISTS, TOLD, VECTORS, DiskIndexBuilder, read_fit, read_told
from hf_targets.retrieval.query_fit import QueryFit
from hf_targets.retrieval.vector_index import VectorIndex
from hf_targets.retrieval.vector_search import Metric, VectorSearch, check_fingerprint, check_search

_SAMPLE = 1 << 20
_VECTORS_AT_ONCE, _QUERIES_AT_ONCE, _NUMBERS_AT_ONCE = 1 << 13, 256, 1 << 24


class DiskIndex:
    """Exact scores of vectors in a file that is mapped into memory: a search reads the candidates of an index only.

    Made by `build`, by `load` or, in steps, by a `DiskIndexBuilder`. Safe to read from several threads at once.

    Args:
        vectors: (N, dim), float16, such as a `numpy.memmap`.
        proposes: An index of the same vectors; None: every search compares all of them.
        metric: What is near.
        num_candidates: How many the index proposes for each vector that is asked for. More find more of the nearest.
        fingerprint: What the vectors depend on.
        fit: What the index was fitted to.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        proposes: VectorSearch | None = None,
        *,
        metric: Metric = "inner_product",
        num_candidates: int = 16,
        fingerprint: Mapping[str, str] | None = None,
        fit: QueryFit | None = None,
    ) -> None:
        self.vectors, self.proposes = vectors, proposes
        self.metric: Metric = metric
        self._mapping = None if proposes is None else _mapping_of(vectors)
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_RANDOM)  # do not read ahead
        self.num_candidates, self.fingerprint, self.fit = num_candidates, dict(fingerprint or {}), fit

    @classmethod
    def build(
        cls,
        embeddings: Tensor,
        factory: str,
        *,
        folder: str | os.PathLike[str],
        metric: Metric = "inner_product",
        num_probes: int | None = None,
        fingerprint: Mapping[str, str] | None = None,
        queries: Tensor | None = None,
    ) -> Self:
        """Build the index of `embeddings` (vectors, dim) in a folder, in one process and one shard, and open it.

        Args:
            factory, metric, num_probes, fingerprint, queries: As for `DiskIndexBuilder.train`.
        Raises:
            ValueError: As `DiskIndexBuilder` does, or if the folder has an index already, or a part of one of other
                vectors.
        """
        if (Path(folder) / TOLD).exists():
            raise ValueError(f"{folder} has an index already; load it, or give another folder")
        how: Any = {"metric": metric, "num_probes": num_probes, "fingerprint": fingerprint, "queries": queries}
        sample = embeddings[:: max(1, -(-len(embeddings) // _SAMPLE))]
        builder = DiskIndexBuilder.train(folder, sample, factory, **how)
        if builder.filled:
            held, some = cls.load(builder.shard_folder(0)).vectors, slice(None, None, len(embeddings) // 256 + 1)
            if held.shape != embeddings.shape or not np.array_equal(held[some], embeddings[some].half().cpu()):
                raise ValueError(f"{folder} has a part of an index of other vectors; give another folder, or remove it")
        builder.fill(0, embeddings)
        builder.merge(1)
        return cls.load(folder, fingerprint=fingerprint)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        fingerprint: Mapping[str, str] | None = None,
        num_probes: int | None = None,
        num_candidates: int = 16,
    ) -> Self:
        """Open an index, or one shard of it, whose vectors and lists stay in their files.

        Args:
            num_probes: Lists that a search looks through; None: as many as it was built for.
        Raises:
            ValueError: If a file is missing or damaged, or the fingerprint differs.
        """
        folder = Path(folder)
        told = read_told(folder / TOLD)
        check_fingerprint(folder, fingerprint, told["fingerprint"])
        sizes = {name: (folder / name).stat().st_size for name in told["files"] if (folder / name).exists()}
        if sizes != told["files"]:
            raise ValueError(
                f"{folder} has a damaged index, of files of {sizes} bytes, not {told['files']}; build it again"
            )
        vectors = np.memmap(folder / VECTORS, np.float16, "r", shape=(told["num_vectors"], told["dim"]))
        index = _mapped(folder)
        if num_probes is not None:
            require("faiss", extra="phrases").extract_index_ivf(index).nprobe = num_probes
        how = {"metric": told["metric"], "num_candidates": num_candidates, "fingerprint": told["fingerprint"]}
        return cls(vectors, VectorIndex(index, told["fingerprint"]), fit=read_fit(folder, told), **how)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self.vectors.shape[1]

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the `k` best scores and the numbers of their vectors, both (rows, k), best first.

        Scores are in float32, of vectors in float16. With fewer than `k` vectors all are returned. Where the index
        proposes fewer, the last numbers are -1.

        Args:
            queries: (rows, dim), of any float type. The results are on their device.
        Raises:
            ValueError: If `queries` is not a finite float matrix of this width, or `k` is below 1.
        """
        check_search(queries, k, self.dim)
        found = [self._search(part, min(k, len(self))) for part in queries.detach().float().split(_QUERIES_AT_ONCE)]
        scores, numbers = (torch.cat(parts) for parts in zip(*found, strict=True))
        return scores, numbers

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if self.proposes is None:
            numbers = self._compared(queries, k)
        else:
            asked = queries if self.fit is None else self.fit.of_queries(queries)
            numbers = self.proposes.search(asked, k * self.num_candidates)[1]
        is_far = self.metric == "distance"
        scores = self._scores(queries, numbers).masked_fill_(numbers < 0, torch.inf if is_far else -torch.inf)
        scores, at = scores.topk(k, dim=1, largest=not is_far)
        return scores, numbers.gather(1, at)

    def _scores(self, queries: Tensor, numbers: Tensor) -> Tensor:
        """Return the scores (rows, candidates) of vectors by their numbers, and any where these are below 0."""
        at, rows = numbers.clamp(min=0).cpu(), max(1, _NUMBERS_AT_ONCE // (numbers.shape[1] * self.dim))
        scores = []
        for some, query in zip(at.split(rows), queries[:, :, None].split(rows), strict=True):
            near = torch.from_numpy(self.vectors[some.numpy()]).to(query.device).float()
            if self._mapping is not None:  # or all pages would come to count as memory of this process
                self._mapping.madvise(mmap.MADV_DONTNEED)
            if self.metric == "distance":
                scores.append((near - query.mT).square_().sum(dim=2))
            else:
                scores.append((near @ query).squeeze(2))
        return torch.cat(scores)

    def _compared(self, queries: Tensor, k: int) -> Tensor:
        """Return the numbers of the vectors of the highest q . v, or q . v - |v|^2 / 2, among all."""
        best, numbers = queries.new_zeros(len(queries), 0), torch.empty(0)
        room = queries.new_empty(_VECTORS_AT_ONCE, self.dim)  # to allocate it for each part takes longer than all
        for start in range(0, len(self), _VECTORS_AT_ONCE):
            part = torch.from_numpy(np.array(self.vectors[start : start + _VECTORS_AT_ONCE]))
            vectors = room[: len(part)].copy_(part)
            if self.metric == "distance":
                squares = torch.linalg.vector_norm(vectors, dim=1).square()
                scores = torch.addmm(squares, queries, vectors.T, beta=-0.5)
            else:
                scores = queries @ vectors.T
            some, at = scores.topk(min(k, len(vectors)), dim=1)
            numbers = torch.cat([numbers, at + start], dim=1) if start else at
            best, at = torch.cat([best, some], dim=1).topk(min(k, numbers.shape[1]), dim=1)
            numbers = numbers.gather(1, at)
        return numbers


def _mapping_of(vectors: np.ndarray) -> mmap.mmap | None:
    """Return the map of the file that an array is in, and only reads; None if the system takes no advice on one."""
    holder: Any = vectors
    if vectors.flags.writeable:  # pages that were changed may be nowhere else
        return None
    while isinstance(holder, np.ndarray):
        holder = holder.base
    return holder if isinstance(holder, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") else None


def _mapped(folder: Path) -> Any:
    """Return FAISS's index, whose lists stay in its own file, or in the one of merged lists."""
    faiss, path = require("faiss", extra="phrases"), os.fspath(folder / INDEX)
    if not (folder / LISTS).exists():
        return faiss.read_index(path, faiss.IO_FLAG_MMAP)
    index = faiss.read_index(path, faiss.IO_FLAG_SKIP_IVF_DATA)
    lists = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)
    lists.filename, lists.read_only = os.fspath(folder / LISTS), True  # wherever the folder is now
    lists.do_mmap()
    return index
