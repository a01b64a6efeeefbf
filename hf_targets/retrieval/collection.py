"""Documents on disk, found by their vectors, by their words or by both: a thin layer over a table of LanceDB."""

import json
import os
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from pyarrow import compute

from hf_targets.data.progress import progress
from hf_targets.extras import require
from hf_targets.retrieval.documents import check_documents, check_queries
from hf_targets.retrieval.encoders import Encoder, encoder_of, vectors_of

By = Literal["vectors", "words", "both"]
_SCORES: dict[By, str] = {"vectors": "_distance", "words": "_score", "both": "_relevance_score"}
_TABLE, _NOTE = "documents", b"hf_targets"
_PROBE = ["The quick brown fox jumps over the lazy dog."]
_TEXTS_AT_ONCE, _QUERIES_AT_ONCE, _ROWS_AT_ONCE = 256, 64, 65_536
_LEFT_UNINDEXED = 10_000  # rows that a search by words may read one by one


class DocumentCollection(Mapping[str, str]):
    """A folder of documents: a mapping of ids to texts, and a retriever. Made by `create` or `open`.

    Each call of `add` and `delete` is one transaction: if it fails or its process is killed, the documents stay as they
    were. There is one writer at a time; two that add the same id at once both succeed. Readers, in threads and other
    processes, keep the version that they opened until `refresh`. Documents have no order.

    >>> from sentence_transformers import SentenceTransformer  # doctest: +SKIP
    >>> encoder = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> collection = DocumentCollection.create("shelf", encoder)  # doctest: +SKIP
    >>> collection.add({"pets": "The cat sat on the mat.", "sky": "Stars and planets shine."})  # doctest: +SKIP
    >>> [name for name, score in collection.retrieve(["a planet"], k=1)[0]]  # doctest: +SKIP
    ['sky']

    Attributes:
        table: The LanceDB table with the columns `id`, `text` and `vector`, for whatever LanceDB can do beyond this,
            such as `table.optimize()`, which frees the rows that were deleted.
    """

    def __init__(self, folder: str | os.PathLike[str], encoder: Encoder, table: Any) -> None:
        self.folder, self.encoder, self.table = os.fspath(folder), encoder_of(encoder), table

    @classmethod
    def create(cls, folder: str | os.PathLike[str], encoder: Encoder) -> "DocumentCollection":
        """Return a new collection without documents.

        Args:
            folder: A local folder, made if it is missing, or an address that LanceDB takes, such as "s3://...".
            encoder: Of documents and queries, such as a `SentenceTransformer`.
        Raises:
            ValueError: If the folder has a collection already.
            ImportError: If lancedb is not installed.
        """
        connection = _connection(folder)
        if _TABLE in connection.list_tables().tables:
            raise ValueError(f"{folder} has a collection already; open it, or give another folder")
        probe = _probe(encoder_of(encoder))
        vector = pa.list_(pa.float32(), probe.shape[1])
        schema = pa.schema(
            [pa.field("id", pa.string(), False), pa.field("text", pa.string(), False), pa.field("vector", vector)],
            metadata={_NOTE: json.dumps({"probe": probe.tolist()})},
        )
        table = connection.create_table(_TABLE, schema=schema)
        _make_indices(table)
        return cls(folder, encoder, table)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], encoder: Encoder) -> "DocumentCollection":
        """Return the collection in a folder.

        Raises:
            ValueError: If the folder has none that can be read, or the encoder gives a sentence other vectors than the
                encoder that the collection was made with.
        """
        is_missing = "://" not in os.fspath(folder) and not Path(folder).is_dir()  # connecting would make the folder
        if is_missing or _TABLE not in (connection := _connection(folder)).list_tables().tables:
            raise ValueError(f"{folder} is not a collection; give the folder that DocumentCollection.create made")
        with _damage_named(folder):
            table = connection.open_table(_TABLE)
            expected = np.array(json.loads(table.schema.metadata[_NOTE])["probe"])
        probe = _probe(encoder_of(encoder))
        if expected.shape != probe.shape or np.linalg.norm(expected - probe) > 0.001 * np.linalg.norm(expected):
            raise ValueError(
                f"{folder} was made with another encoder, whose vectors differ (width {expected.shape[1]}, this one's "
                f"{probe.shape[1]}); give that encoder, or add the documents to a new collection"
            )
        return cls(folder, encoder, table)

    @property
    def phrase_folder(self) -> Path | None:
        """Where models keep the embeddings of the documents' phrases; None, nowhere, if the collection is remote."""
        return None if "://" in self.folder else Path(self.folder, "phrase_embeddings")

    def refresh(self) -> None:
        """Go on to the newest version."""
        self.table.checkout_latest()

    def add(self, documents: Mapping[str, str], *, replace: bool = False) -> None:
        """Add documents, encoded and written in batches, so that memory does not grow with their number.

        Args:
            documents: Texts by id; a mapping that reads them from elsewhere will do.
            replace: Whether to replace documents that exist. Those whose text is the same are not encoded again.
        Raises:
            ValueError: If a document has no text, an id exists and `replace` is false, or the encoder's vectors are not
                finite rows, one a text.
        """
        check_documents(documents)
        self.refresh()
        exist = self._find(list(documents), "text" if replace else "id")
        if exist and not replace:
            raise ValueError(
                f"an id must be new, and {len(exist)} exist, such as {next(iter(exist))!r}; leave them out, or give "
                "replace=True"
            )
        names = [name for name in documents if exist.get(name) != documents[name]] if exist else list(documents)
        if not names:
            return
        failed: list[Exception] = []
        with progress(len(names), "adding documents", unit="document") as bar:

            def batches() -> Iterator[pa.RecordBatch]:
                try:
                    for start in range(0, len(names), _TEXTS_AT_ONCE):
                        yield self._encoded(documents, names[start : start + _TEXTS_AT_ONCE])
                        bar.update(min(_TEXTS_AT_ONCE, len(names) - start))
                except Exception as error:
                    failed.append(error)
                    raise

            reader = pa.RecordBatchReader.from_batches(self.table.schema, batches())
            try:
                if exist:
                    upsert = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                    upsert.execute(reader)
                else:
                    self.table.add(reader)
            except RuntimeError as error:  # LanceDB's, which holds the batches' own as a text
                raise (failed or [error])[0] from None
        words = self.table.index_stats("words")
        if words is None:  # whoever created the collection was killed before
            _make_indices(self.table)
        elif words.num_unindexed_rows > max(_LEFT_UNINDEXED, words.num_indexed_rows // 4):
            self.table.optimize()

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents.

        Raises:
            ValueError: If an id is not there; nothing is deleted in this case.
        """
        names = list(dict.fromkeys([ids] if isinstance(ids, str) else ids))
        self.refresh()
        there = self._find(names, "id")
        if len(there) < len(names):
            missing = next(name for name in names if name not in there)
            raise ValueError(f"an id to delete must be there, and {len(names) - len(there)} are not, as {missing!r}")
        if names:
            self.table.delete(f"id IN ({', '.join(map(_quoted, names))})")

    def retrieve(self, queries: list[str], k: int, *, by: By = "vectors") -> list[list[tuple[str, float]]]:
        """Return for each query the ids and scores of its `k` nearest documents, nearest first; fewer if there are.

        Args:
            by: "vectors": inner products, exact unless `table` was given an index of vectors. "words": BM25, of
                documents that share a word with the query. "both": the reciprocal ranks of both ways, added.
        Raises:
            ValueError: If a query has no text, `k` is below 1, `by` is unknown or there is no document.
        """
        check_queries(queries, k)
        if by not in get_args(By):
            raise ValueError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")
        if not len(self):
            raise ValueError(f"there must be a document to retrieve, and {self.folder} has none; add some, or refresh")
        vectors = vectors_of(queries, self.encoder.encode_query) if queries and by != "words" else np.empty(0)
        found: list[list[tuple[str, float]]] = [[] for _ in queries]
        size = _QUERIES_AT_ONCE if by == "vectors" else 1
        with progress(len(queries), "matching documents", unit="query") as bar:
            for start in range(0, len(queries), size):
                some = queries[start : start + size]
                rows = self._search(some, vectors[start : start + size], k, by)
                scores = rows[_SCORES[by]].to_pylist()
                owners = rows["query_index"].to_pylist() if "query_index" in rows.schema.names else [0] * len(rows)
                for owner, name, score in zip(owners, rows["id"].to_pylist(), scores, strict=True):
                    found[start + owner].append((name, 1 - score if by == "vectors" else score))
                bar.update(len(some))
        return found

    def _search(self, queries: list[str], vectors: np.ndarray, k: int, by: By) -> pa.Table:
        """Return the rows that several queries find by vectors, or one in another way."""
        if by == "words":
            search = self.table.search(queries[0], query_type="fts").select(["id", _SCORES[by]])
        elif by == "vectors":
            search = self.table.search(list(vectors), vector_column_name="vector").distance_type("dot")
            search = search.select(["id", _SCORES[by]])
        else:
            search = self.table.search(query_type="hybrid", vector_column_name="vector")
            search = search.vector(vectors[0]).text(queries[0]).distance_type("dot")
        with _damage_named(self.folder):
            return search.limit(k).to_arrow()

    def _find(self, names: list[str], column: str) -> dict[str, str]:
        """Return a column of those documents that are there, by id."""
        wanted, found = pa.array(names, pa.string()), {}
        for batch in self._columns(*dict.fromkeys(["id", column])):
            there = compute.is_in(batch["id"], value_set=wanted)  # pyright: ignore[reportAttributeAccessIssue]
            rows = batch.filter(there)
            found |= zip(rows["id"].to_pylist(), rows[column].to_pylist(), strict=True)
        return found

    def _encoded(self, documents: Mapping[str, str], names: list[str]) -> pa.RecordBatch:
        schema, texts = self.table.schema, [documents[name] for name in names]
        dim = schema.field("vector").type.list_size
        vectors = vectors_of(texts, self.encoder.encode_document, dim)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim)
        return pa.record_batch([pa.array(names), pa.array(texts), column], schema=schema)

    def __getitem__(self, name: str) -> str:
        with _damage_named(self.folder):
            rows = self.table.search().where(f"id = {_quoted(name)}").select(["text"]).to_arrow()
        if not len(rows):
            raise KeyError(f"document {name!r} is not in {self.folder}; refresh() shows what others have added")
        return rows["text"][0].as_py()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.table.count_rows(f"id = {_quoted(name)}") > 0

    def __iter__(self) -> Iterator[str]:
        return (name for batch in self._columns("id") for name in batch["id"].to_pylist())

    def items(self) -> ItemsView[str, str]:
        """Return a view of ids and texts, which reads them in batches."""
        return _Items(self)

    def __len__(self) -> int:
        return self.table.count_rows()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder!r}, {len(self)} documents)"

    def _columns(self, *names: str) -> Iterator[pa.RecordBatch]:
        with _damage_named(self.folder):
            yield from self.table.search().select(list(names)).to_batches(_ROWS_AT_ONCE)


class _Items(ItemsView[str, str]):
    _mapping: DocumentCollection

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for batch in self._mapping._columns("id", "text"):
            yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)


@contextmanager
def _damage_named(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, a ValueError that names the folder replaces errors about its files."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError) as error:  # LanceDB's, or those of a note that is none
        raise ValueError(f"LanceDB cannot read {folder}; copy or make the collection again: {error}") from error


def _connection(folder: str | os.PathLike[str]) -> Any:
    return require("lancedb", extra="retrieval").connect(os.fspath(folder))


def _make_indices(table: Any) -> None:
    index = require("lancedb.index", extra="retrieval")
    table.create_index("id", config=index.BTree(), name="ids")
    plain = {"base_tokenizer": "icu", "stem": False, "remove_stop_words": False}  # no language is assumed
    table.create_index("text", config=index.FTS(**plain), name="words")


def _probe(encoder: Encoder) -> np.ndarray:
    """Return the vectors of a sentence as document and as query, (2, dim), by which an encoder is known again."""
    document = vectors_of(_PROBE, encoder.encode_document)
    return np.concatenate([document, vectors_of(_PROBE, encoder.encode_query, document.shape[1])])


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"
