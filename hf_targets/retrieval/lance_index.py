"""The vectors nearest to a query, in a table of LanceDB, in a folder or a store of objects."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import pyarrow as pa
from torch import Tensor

from hf_targets.extras import require
from hf_targets.retrieval.vector_search import Metric, check_fingerprint, check_search, filled_up, matrix

_TABLE, _NOTE = "vectors", b"hf_targets"
_ADDED_AT_ONCE, _QUERIES_AT_ONCE = 1 << 14, 64


class LanceIndex:
    """Search over the vectors of a table of LanceDB, which compares all of them until it is given an index.

    >>> index = LanceIndex.build(embeddings, folder="vectors")  # doctest: +SKIP
    >>> index.table.create_index(metric="dot", num_partitions=1024, num_sub_vectors=72)  # doctest: +SKIP
    >>> index = LanceIndex.load("vectors", num_probes=32, refine_factor=4)  # doctest: +SKIP

    Attributes:
        table: LanceDB's, for whatever it can do beyond this.
        num_probes: Partitions that a search by an index looks through; None: LanceDB's own number.
        refine_factor: How many candidates of an index are compared exactly, for each vector that is asked for; None:
            scores are the index's.
    """

    def __init__(self, table: Any, *, num_probes: int | None = None, refine_factor: int | None = None) -> None:
        self.table, self.num_probes, self.refine_factor = table, num_probes, refine_factor
        self._length, note = table.count_rows(), json.loads(table.schema.metadata[_NOTE])
        self.metric: Metric = note["metric"]
        self.fingerprint: dict[str, str] = note["fingerprint"]

    @classmethod
    def build(
        cls,
        embeddings: Tensor,
        *,
        folder: str | os.PathLike[str],
        metric: Metric = "inner_product",
        fingerprint: Mapping[str, str] | None = None,
    ) -> Self:
        """Return an index of `embeddings` (vectors, dim), in one transaction: it is there as a whole, or not at all.

        Args:
            folder: A local folder, or an address that LanceDB takes, such as "s3://...".
            metric, fingerprint: As for `VectorIndex.build`.
        Raises:
            ValueError: If the embeddings are not a finite float matrix with a row, or the folder has an index.
            ImportError: If lancedb is not installed.
        """
        connection = _connection(folder)
        if not len(matrix("embeddings", embeddings[:1])):
            raise ValueError(f"embeddings need a vector, got shape {tuple(embeddings.shape)}")
        if _TABLE in connection.list_tables().tables:
            raise ValueError(f"{folder} has an index already; load it, or give another folder")
        for part in embeddings.split(_ADDED_AT_ONCE):  # an error of a batch would reach LanceDB only as a text
            matrix("embeddings", part)
        dim = embeddings.shape[1]
        note = json.dumps({"metric": metric, "fingerprint": dict(fingerprint or {})})
        fields = [pa.field("number", pa.int64()), pa.field("vector", pa.list_(pa.float32(), dim))]
        schema = pa.schema(fields, metadata={_NOTE: note})

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(embeddings), _ADDED_AT_ONCE):
                rows = matrix("embeddings", embeddings[start : start + _ADDED_AT_ONCE]).numpy()
                numbers = pa.array(np.arange(start, start + len(rows)))
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), dim)
                yield pa.record_batch([numbers, vectors], schema=schema)

        return cls(connection.create_table(_TABLE, pa.RecordBatchReader.from_batches(schema, batches())))

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, fingerprint: Mapping[str, str] | None = None, **settings: Any
    ) -> Self:
        """Return the index that `build` made.

        Args:
            settings: `num_probes` and `refine_factor`.
        Raises:
            ValueError: If the folder has none, or the fingerprint differs.
        """
        if "://" not in os.fspath(folder) and not os.path.isdir(folder):  # connecting would make the folder
            raise ValueError(f"{folder} has no index; give the folder of LanceIndex.build")
        connection = _connection(folder)
        if _TABLE not in connection.list_tables().tables:
            raise ValueError(f"{folder} has no index; give the folder of LanceIndex.build")
        index = cls(connection.open_table(_TABLE), **settings)
        check_fingerprint(folder, fingerprint, index.fingerprint)
        return index

    def __len__(self) -> int:
        return self._length

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self.table.schema.field("vector").type.list_size

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the `k` best scores and the numbers of their vectors, as `VectorSearch.search` does.

        Raises:
            ValueError: If `queries` is not a finite float matrix of this width, or `k` is below 1.
        """
        found: list[list[tuple[float, int]]] = [[] for _ in queries]
        rows, k = check_search(queries, k, self.dim).numpy(), min(k, len(self))
        for start in range(0, len(rows), _QUERIES_AT_ONCE):
            some = list(rows[start : start + _QUERIES_AT_ONCE])
            search = self.table.search(some, vector_column_name="vector").select(["number", "_distance"])
            search = search.distance_type("dot" if self.metric == "inner_product" else "l2").limit(k)
            search = search if self.num_probes is None else search.nprobes(self.num_probes)
            search = search if self.refine_factor is None else search.refine_factor(self.refine_factor)
            answer = search.to_arrow()
            owners = answer["query_index"].to_pylist() if len(some) > 1 else [0] * len(answer)
            for owner, score, number in zip(
                owners, answer["_distance"].to_pylist(), answer["number"].to_pylist(), strict=True
            ):
                found[start + owner].append((1 - score if self.metric == "inner_product" else score, number))
        scores, numbers = filled_up(found, k, self)
        return scores.to(queries.device), numbers.to(queries.device)


def _connection(folder: str | os.PathLike[str]) -> Any:
    return require("lancedb", extra="retrieval").connect(os.fspath(folder))
