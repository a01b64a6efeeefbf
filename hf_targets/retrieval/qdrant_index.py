"""The vectors nearest to a query, in a collection of Qdrant: a server's, a cluster's, or in this process."""

from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from hf_targets.extras import require
from hf_targets.retrieval.vector_search import Metric, check_fingerprint, check_search, filled_up, matrix

_ADDED_AT_ONCE = 1 << 14


class QdrantIndex:
    """Search over the vectors of a collection of Qdrant. Made by `build` or `load`.

    >>> from qdrant_client import QdrantClient  # doctest: +SKIP
    >>> client = QdrantClient("http://localhost:6333")  # or ":memory:", or path="folder"  # doctest: +SKIP
    >>> index = QdrantIndex.build(torch.eye(3), client=client, name="phrases")  # doctest: +SKIP

    Attributes:
        client, name: The client and the name of the collection, for whatever Qdrant can do beyond this.
        search_settings: Fields of Qdrant's `SearchParams`, such as `exact=True`, or `hnsw_ef`. A server's search is
            approximate without them; in this process it is exact.
    """

    def __init__(self, client: Any, name: str, **search_settings: Any) -> None:
        self.client, self.name, self.search_settings = client, name, search_settings
        about = client.get_collection(name).config
        self.fingerprint: dict[str, str] = dict(about.metadata["fingerprint"])
        self._length, self._vectors = about.metadata["num_vectors"], about.params.vectors

    @classmethod
    def build(
        cls,
        embeddings: Tensor,
        *,
        client: Any,
        name: str,
        metric: Metric = "inner_product",
        fingerprint: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Self:
        """Return an index of `embeddings` (vectors, dim), in a new collection.

        Args:
            client: A `QdrantClient`.
            name: Of the collection.
            metric, fingerprint: As for `VectorIndex.build`.
            settings: Fields of Qdrant's `VectorParams`, such as `on_disk=True`, `datatype="float16"`.
        Raises:
            ValueError: If the embeddings are not a finite float matrix with a row, or there is such a collection.
            ImportError: If qdrant-client is not installed.
        """
        models = require("qdrant_client.models", extra="scale")
        if not len(matrix("embeddings", embeddings[:1])):
            raise ValueError(f"embeddings need a vector, got shape {tuple(embeddings.shape)}")
        if client.collection_exists(name):
            raise ValueError(f"{name} is a collection already; load it, delete it, or give another name")
        distance = models.Distance.DOT if metric == "inner_product" else models.Distance.EUCLID
        client.create_collection(
            name,
            vectors_config=models.VectorParams(size=embeddings.shape[1], distance=distance, **settings),
            metadata={"fingerprint": dict(fingerprint or {}), "num_vectors": len(embeddings)},
        )
        try:
            for start in range(0, len(embeddings), _ADDED_AT_ONCE):
                rows = matrix("embeddings", embeddings[start : start + _ADDED_AT_ONCE])
                client.upload_collection(name, rows.numpy(), ids=range(start, start + len(rows)), wait=True)
        except BaseException:
            client.delete_collection(name)
            raise
        return cls(client, name)

    @classmethod
    def load(
        cls, client: Any, name: str, *, fingerprint: Mapping[str, str] | None = None, **search_settings: Any
    ) -> Self:
        """Return the index that `build` made.

        Raises:
            ValueError: If there is no such collection, it was not built to its end, or the fingerprint differs.
        """
        if not client.collection_exists(name) or not client.get_collection(name).config.metadata:
            raise ValueError(f"{name} is not a collection that QdrantIndex.build made; give its name")
        index = cls(client, name, **search_settings)
        check_fingerprint(f"collection {name}", fingerprint, index.fingerprint)
        if (count := client.count(name, exact=True).count) != len(index):
            raise ValueError(f"{name} has {count} of {len(index)} vectors; delete the collection, and build it again")
        return index

    def __len__(self) -> int:
        return self._length

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self._vectors.size

    @property
    def metric(self) -> Metric:
        """Return what is near."""
        return "inner_product" if self._vectors.distance == "Dot" else "distance"

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the `k` best scores and the numbers of their vectors, as `VectorSearch.search` does.

        Raises:
            ValueError: If `queries` is not a finite float matrix of this width, or `k` is below 1.
        """
        models = require("qdrant_client.models", extra="scale")
        rows, k, params = check_search(queries, k, self.dim), min(k, len(self)), dict(self.search_settings)
        asked = [models.QueryRequest(query=row, limit=k, params=models.SearchParams(**params)) for row in rows.tolist()]
        answers = self.client.query_batch_points(self.name, asked) if asked else []
        scores, numbers = filled_up([[(one.score, one.id) for one in answer.points] for answer in answers], k, self)
        scores = scores.square_() if self.metric == "distance" else scores
        return scores.to(queries.device), numbers.to(queries.device)
