"""The vectors of a large table nearest to a query, by FAISS, in memory or in files."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from hf_targets.data.atomic_write import written_together
from hf_targets.extras import require
from hf_targets.retrieval.vector_search import Metric, check_fingerprint, check_search, matrix

_VECTORS, _TOLD = "vector_index.faiss", "vector_index.json"
_TRAINED_ON, _ADDED_AT_ONCE = 1 << 20, 1 << 16
"""Most vectors that an index learns from, evenly spaced, and that are held as float32 at once beside it."""


class VectorIndex:
    """Search over vectors, by inner products or distances, with FAISS; safe to read from several threads at once.

    Row r of the embeddings that `build` was given has the number r. Made by `build` or `load`.

    >>> index = VectorIndex.build(torch.eye(3))
    >>> index.search(torch.tensor([[0.0, 2.0, 1.0]]), k=2)
    (tensor([[2., 1.]]), tensor([[1, 2]]))

    Attributes:
        index: FAISS's own, for whatever FAISS can do beyond this.
        fingerprint: What the embeddings depend on.
    """

    def __init__(self, index: Any, fingerprint: Mapping[str, str]) -> None:
        self.index, self.fingerprint = index, dict(fingerprint)

    @classmethod
    def build(
        cls,
        embeddings: Tensor,
        factory: str = "Flat",
        *,
        metric: Metric = "inner_product",
        num_probes: int | None = None,
        fingerprint: Mapping[str, str] | None = None,
    ) -> Self:
        """Return an index of `embeddings` (vectors, dim), taken as float32.

        Args:
            factory: FAISS's description: "Flat" is exact; "IVF1024,Flat" searches some of 1,024 lists, so that it may
                miss vectors; "IVF4096,PQ64" also keeps 64 bytes a vector in place of the vector, so that scores are
                approximate. 64 must divide the width; "Pad640,IVF4096,PQ64" adds zeros to the vectors.
            metric: "distance": scores are square distances, and the lowest are found.
            num_probes: Lists of an IVF index that a search looks through; None: a 32nd of them.
            fingerprint: What the embeddings depend on (encoder, vocabulary), each by a name and a value that changes
                with it; `load` takes the same values only.
        Raises:
            ValueError: If the embeddings are not a finite float matrix with a row, FAISS does not know the factory, or
                there are fewer vectors than lists.
            ImportError: If faiss is not installed.
        """
        if not len(matrix("embeddings", embeddings[:1])):
            raise ValueError(f"embeddings need a vector, got shape {tuple(embeddings.shape)}")
        sample = embeddings[:: -(-len(embeddings) // _TRAINED_ON)]
        index = trained_index(sample, factory, metric=metric, num_probes=num_probes)
        for part in embeddings.split(_ADDED_AT_ONCE):
            index.add(matrix("embeddings", part).numpy())
        return cls(index, fingerprint or {})

    def __len__(self) -> int:
        return self.index.ntotal

    @property
    def dim(self) -> int:
        """Return the width of the embeddings."""
        return self.index.d

    @property
    def metric(self) -> Metric:
        """Return what is near."""
        faiss = require("faiss", extra="phrases")
        return "inner_product" if self.index.metric_type == faiss.METRIC_INNER_PRODUCT else "distance"

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the `k` best scores and the numbers of their vectors, both (rows, k), best first.

        With fewer than `k` vectors in the index all are returned. Where the probed lists of an IVF index hold fewer,
        the last numbers are -1.

        Args:
            queries: (rows, dim), of any float type; the product is in float32. The results are on their device.
        Raises:
            ValueError: If `queries` is not a finite float matrix of the index's width, or `k` is below 1.
        """
        vectors = check_search(queries, k, self.dim)
        scores, numbers = self.index.search(vectors.numpy(), min(k, len(self)))
        return torch.from_numpy(scores).to(queries.device), torch.from_numpy(numbers).to(queries.device)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write FAISS's file of the index, and a JSON file of what it is for, to `folder`, made if missing.

        A failure or a kill leaves the index that was: of both, the JSON file has the digest and what it is for, and it
        is moved first.

        Raises:
            OSError: If a file cannot be written.
        """
        faiss, folder = require("faiss", extra="phrases"), Path(folder)
        told = {}
        with suppress(OSError, ValueError, AttributeError):  # there is none, or it is damaged
            told = {digest: one for digest, one in _told(folder).items() if digest == _sha256(folder / _VECTORS)}
        with written_together(folder, _TOLD, _VECTORS) as unfinished:
            with (unfinished / _VECTORS).open("wb") as file:  # FAISS itself does not tell of a full disk
                faiss.write_index(self.index, faiss.PyCallbackIOWriter(file.write))
            told |= {_sha256(unfinished / _VECTORS): self.fingerprint}
            (unfinished / _TOLD).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, fingerprint: Mapping[str, str] | None = None) -> Self:
        """Return the index that `save` wrote to `folder`, if `fingerprint` is the one it was built with.

        Raises:
            ValueError: If a file is missing or damaged, or the fingerprint differs.
        """
        faiss, path = require("faiss", extra="phrases"), Path(folder, _VECTORS)
        try:
            built_with = dict(_told(path.parent)[_sha256(path)])
            index = faiss.read_index(os.fspath(path))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{path} or its {_TOLD} is missing or damaged ({error!r}); build it again") from error
        check_fingerprint(path, fingerprint, built_with)
        return cls(index, built_with)


def empty_index(dim: int, factory: str, metric: Metric) -> Any:
    """Return what FAISS makes of a factory; a ValueError tells that it knows none such."""
    faiss = require("faiss", extra="phrases")
    kind = faiss.METRIC_INNER_PRODUCT if metric == "inner_product" else faiss.METRIC_L2
    try:
        return faiss.index_factory(dim, factory, kind)
    except RuntimeError as error:
        raise ValueError(f'factory must be one of FAISS, such as "Flat", got {factory!r}: {error}') from error


def trained_index(sample: Tensor, factory: str, *, metric: Metric, num_probes: int | None = None) -> Any:
    """Return an index of FAISS without vectors, which has learnt from a sample (vectors, dim) what it has to learn.

    Args:
        factory, metric, num_probes: As for `VectorIndex.build`.
    Raises:
        ValueError: If FAISS does not know the factory, or cannot learn from so few vectors.
    """
    index = empty_index(sample.shape[1], factory, metric)
    if not index.is_trained:
        try:
            index.train(matrix("embeddings", sample).numpy())
        except RuntimeError as error:
            raise ValueError(
                f"{len(sample)} vectors are too few for {factory}; give more, or one of fewer lists: {error}"
            ) from error
    if "IVF" in factory:
        lists = require("faiss", extra="phrases").extract_index_ivf(index)
        lists.nprobe = -(-lists.nlist // 32) if num_probes is None else num_probes
    return index


def _told(folder: Path) -> dict[str, dict[str, str]]:
    """Return what the indexes with these digests are for."""
    return json.loads((folder / _TOLD).read_text(encoding="utf-8"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
