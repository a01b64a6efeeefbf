"""The vectors of a large table with the highest inner products with a query, by FAISS, in memory or in files."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from hf_targets.extras import require
from hf_targets.retrieval.exact_search import NOT_FINITE, ROWS_AT_ONCE, check_products, top_products
from hf_targets.retrieval.index_files import read_index, write_index
from hf_targets.retrieval.inverted_lists import build_lists, default_num_lists
from hf_targets.retrieval.text_checks import check_count

Mode = Literal["exact", "ivf"]


class VectorIndex:
    """Inner-product search over vectors; safe to read from several threads at once.

    Mode `exact` computes the product with the whole table, in blocks. Mode `ivf` cuts the table into lists of vectors
    that point the same way and searches `num_probes` of them, those with the highest mean inner product with the query.
    It may miss vectors. Scores are exact inner products in both modes: the index keeps vectors as they are, in float32.

    Made by `build` or `load`. Row r of the embeddings that `build` was given has the number r; the index has a copy.
    """

    file_name: ClassVar[str] = "vector_index"
    """Name of the two files of a saved index, without their endings .faiss and .json."""

    def __init__(self, index: Any, mode: Mode, num_probes: int | None, fingerprint: Mapping[str, str]) -> None:
        self._index = index
        self.mode: Mode = mode
        self.num_probes = num_probes
        self.fingerprint = dict(fingerprint)

    @classmethod
    def build(
        cls,
        embeddings: Tensor,
        *,
        mode: Mode = "exact",
        num_lists: int | None = None,
        num_probes: int | None = None,
        fingerprint: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> Self:
        """Return an index of `embeddings` (vectors, dim), taken as float32.

        Args:
            mode: `exact`, or `ivf` for tables so large that the whole product takes too long.
            num_lists: Lists of `ivf`; None: twice the square root of the number of vectors.
            num_probes: Lists that a search of `ivf` looks through, unless it says otherwise; None: a 32nd of them.
            fingerprint: What the embeddings depend on (encoder, vocabulary), each by a name and a value that changes
                with it; `load` takes the same values only.
            seed: Of the clustering.
        Raises:
            ValueError: If the embeddings are not a finite float matrix with a row, the mode is unknown, or a number of
                lists is out of range or given in mode `exact`.
        """
        faiss = require("faiss", extra="phrases")
        vectors = _matrix("embeddings", embeddings)
        count, dim = vectors.shape
        if count < 1 or dim < 1:
            raise ValueError(f"embeddings need a vector and a dimension, got shape {tuple(vectors.shape)}")
        if mode == "exact":
            if num_lists is not None or num_probes is not None:
                raise ValueError(f"mode='exact' has no lists, got {num_lists=} and {num_probes=}; leave them out")
            index = faiss.IndexFlatIP(dim)
            index.add(vectors.numpy())
        elif mode == "ivf":
            num_lists = default_num_lists(count) if num_lists is None else num_lists
            if not 1 <= num_lists <= count:
                raise ValueError(f"num_lists must be in [1, {count}] for {count} vectors, got {num_lists}")
            num_probes = -(-num_lists // 32) if num_probes is None else num_probes
            if not 1 <= num_probes <= num_lists:
                raise ValueError(f"num_probes must be in [1, {num_lists}] for {num_lists} lists, got {num_probes}")
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                index = build_lists(vectors, num_lists, seed)
        else:
            raise ValueError(f"mode must be 'exact' or 'ivf', got {mode!r}")
        return cls(index, mode, num_probes, fingerprint or {})

    def __len__(self) -> int:
        return self._index.ntotal

    @property
    def dim(self) -> int:
        """Return the width of the embeddings."""
        return self._index.d

    @property
    def num_lists(self) -> int | None:
        """Return how many lists the table is cut into; None in mode `exact`."""
        return None if self.mode == "exact" else self._index.nlist

    @property
    def num_bytes(self) -> int:
        """Return about how many bytes of memory the index takes."""
        return self.bytes_needed(len(self), self.dim, num_lists=self.num_lists)

    @staticmethod
    def bytes_needed(num_vectors: int, dim: int, *, num_lists: int | None = None) -> int:
        """Return about how many bytes an index would take, with lists or (None) exact; building `ivf` takes more.

        >>> VectorIndex.bytes_needed(1_000_000, 768)
        3072000000
        """
        lists = 0 if num_lists is None else num_lists * dim * 4 + num_vectors * 8
        return num_vectors * dim * 4 + lists

    @torch.no_grad()
    def search(self, queries: Tensor, k: int, *, num_probes: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the `k` highest scores and the numbers of their vectors, both (rows, k), highest first.

        With fewer than `k` vectors in the index all are returned. Where the probed lists hold fewer than `k`, further
        lists are searched, so that every entry is a vector of the index.

        Args:
            queries: (rows, dim), of any float type; the product is in float32. The results are on their device.
            num_probes: Lists to search instead of the index's own number.
        Raises:
            ValueError: If `queries` is not a finite float matrix of the index's width, `k` is no integer or below 1,
                `num_probes` is out of range or given in mode `exact`, or a product is not finite.
        """
        vectors = _matrix("queries", queries)
        if vectors.shape[1] != self.dim:
            raise ValueError(f"queries must be as wide as the index, {self.dim}, got shape {tuple(queries.shape)}")
        k = min(check_count(k), len(self))
        if self.mode == "exact":
            if num_probes is not None:
                raise ValueError(f"mode='exact' has no lists to probe, got {num_probes=}; leave it out")
            scores, numbers = self._search_all(vectors, k)
        else:
            num_probes = self.num_probes if num_probes is None else num_probes
            if num_probes is None or not 1 <= num_probes <= self._index.nlist:
                raise ValueError(f"num_probes must be in [1, {self._index.nlist}], got {num_probes}")
            scores, numbers = map(torch.from_numpy, self._search_lists(vectors.numpy(), k, num_probes))
            check_products(scores)
        return scores.to(queries.device), numbers.to(queries.device)

    def recall(self, queries: Tensor, k: int, *, num_probes: int | None = None) -> float:
        """Return the share, in [0, 1], of the exact top `k` of each query (rows, dim) that `search` finds.

        Any of the vectors that tie for rank `k` counts as right.

        Raises:
            ValueError: As `search`, or if there is no query.
        """
        if len(queries) < 1:
            raise ValueError("recall needs a query, got none")
        exact, _ = self.search(queries, k, num_probes=self.num_lists)
        found, _ = self.search(queries, k, num_probes=num_probes)
        return (found >= exact[:, -1:]).double().mean().item()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index and a JSON file of its settings to `folder`, made if missing; a failure leaves what was."""
        settings = {"mode": self.mode, "dim": self.dim, "count": len(self), "num_probes": self.num_probes}
        write_index(folder, self.file_name, self._index, {**settings, "fingerprint": self.fingerprint})

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, fingerprint: Mapping[str, str] | None = None) -> Self:
        """Return the index that `save` wrote to `folder`, if `fingerprint` is the one it was built with.

        Raises:
            ValueError: If a file is missing, truncated, altered or of another version, or the fingerprint differs.
        """
        index, settings = read_index(folder, cls.file_name, fingerprint or {})
        return cls(index, settings["mode"], settings["num_probes"], settings["fingerprint"])

    def _search_all(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        faiss = require("faiss", extra="phrases")
        flat = faiss.rev_swig_ptr(self._index.get_xb(), len(self) * self.dim)
        return top_products(queries, torch.from_numpy(flat).view(len(self), self.dim), k)

    def _search_lists(self, queries: np.ndarray, k: int, num_probes: int) -> tuple[np.ndarray, np.ndarray]:
        faiss = require("faiss", extra="phrases")
        # arguments of the call, not attributes of the index, which other threads read
        scores, numbers = self._index.search(queries, k, params=faiss.SearchParametersIVF(nprobe=num_probes))
        short = np.flatnonzero(numbers[:, -1] < 0) if len(numbers) else []
        if len(short):
            if num_probes == self._index.nlist:
                raise ValueError(NOT_FINITE)  # FAISS leaves out a vector whose product is not
            more = min(4 * num_probes, self._index.nlist)
            scores[short], numbers[short] = self._search_lists(queries[short], k, more)
        return scores, numbers


def _matrix(name: str, values: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or values.ndim != 2 or not values.is_floating_point():
        got = f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name} must be a float matrix, got {got}")
    matrix = values.detach().to("cpu", torch.float32).contiguous()
    if not all(block.isfinite().all() for block in matrix.split(ROWS_AT_ONCE)):
        row = next(row for row, vector in enumerate(matrix) if not vector.isfinite().all())
        raise ValueError(f"{name} must be finite, got NaN or infinity in row {row}; look for an overflow before it")
    return matrix
