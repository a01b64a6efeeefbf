"""Documents in memory that a text is about, by vectors or by shared words, and what documents and queries must be."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from hf_targets.data.progress import progress
from hf_targets.data.words import check_letters, check_texts, word_runs
from hf_targets.extras import require
from hf_targets.retrieval.encoders import Encoder, encoder_of, vectors_of
from hf_targets.retrieval.vector_search import VectorSearch

_QUERIES_AT_ONCE, _SCORED_AT_ONCE = 1024, 64
_Found = Iterator[tuple[np.ndarray, np.ndarray]]


class DocumentRetriever:
    """The documents nearest to a query: by inner product of an encoder's vectors, or by shared words (`lexical`).

    Vectors are in memory, or in any `VectorSearch` (`over`).

    Safe to read from several threads at once where the encoder is.

    >>> shelf = DocumentRetriever.lexical({"pets": "The cat sat on the mat.", "sky": "Stars and planets shine."})
    >>> [name for name, score in shelf.retrieve(["a planet and its stars"], k=1)[0]]
    ['sky']

    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.2, with DPR as encoder.
    Related: `DocumentCollection` keeps documents on disk.

    Args:
        documents: Texts by id.
        encoder: Such as `SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")`, or its `encode` or another
            function, which reads documents and queries alike.
    Raises:
        ValueError: If there is no document, one has no text, or the vectors are not finite rows, one a text.
    """

    def __init__(self, documents: Mapping[str, str], encoder: Encoder | Callable[[list[str]], Any]) -> None:
        check_documents(documents)
        encoder = encoder_of(encoder)
        vectors = vectors_of(list(documents.values()), encoder.encode_document)
        read = partial(vectors_of, encode=encoder.encode_query, dim=vectors.shape[1])
        self._ids, self._nearest = list(documents), partial(_best, read, vectors.T)

    @classmethod
    def lexical(cls, documents: Mapping[str, str]) -> "DocumentRetriever":
        """Return a retriever by the cosine of TF-IDF word weights, which takes no model.

        A word is a run of letters and digits of any script (`word_runs`): not stemmed, and not cut where no space is
        written. BM25 finds the right document more often at rank 1 and less often within 32, which phrases come from.

        Raises:
            ValueError: If there is no document, one has no text, or none has a word.
        """
        check_documents(documents)
        if not any(map(word_runs, documents.values())):
            raise ValueError(f"documents need a word to be found by, and none of {len(documents)} has one")
        features = require("sklearn.feature_extraction.text", extra="phrases")
        words = features.TfidfVectorizer(analyzer=word_runs, sublinear_tf=True, dtype=np.float32)
        weights = words.fit_transform(documents.values()).T.tocsr()
        retriever = cls.__new__(cls)
        retriever._ids, retriever._nearest = list(documents), partial(_best, words.transform, weights)
        return retriever

    @classmethod
    def over(
        cls, ids: Sequence[str], encoder: Encoder | Callable[[list[str]], Any], index: VectorSearch
    ) -> "DocumentRetriever":
        """Return a retriever of documents whose vectors are in an index, on disk or in a server.

        Args:
            ids: Of the documents; row r of the index is the vector of `ids[r]`.
            encoder: Of queries.
            index: By inner products.
        Raises:
            ValueError: If there are not as many ids as vectors, or the index is by distance.
        """
        if len(ids) != len(index) or index.metric != "inner_product":
            raise ValueError(
                f"an index must be by inner products and have a vector for each of {len(ids)} ids, got {len(index)} by "
                f"{index.metric}"
            )
        read = partial(vectors_of, encode=encoder_of(encoder).encode_query, dim=index.dim)
        retriever = cls.__new__(cls)
        retriever._ids, retriever._nearest = ids, partial(_found, read, index)
        return retriever

    def __len__(self) -> int:
        return len(self._ids)

    def retrieve(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        """Return for each query the ids and scores of its `k` nearest documents, nearest first; all if there are fewer.

        Of equals the first ones are taken.

        Raises:
            ValueError: If `queries` is a single text or holds one without text, or `k` is below 1.
        """
        check_queries(queries, k)
        found = []
        with progress(len(queries), "matching documents", unit="query") as bar:
            for start in range(0, len(queries), _QUERIES_AT_ONCE):
                for numbers, scores in self._nearest(queries[start : start + _QUERIES_AT_ONCE], k):
                    found.append([(self._ids[at], float(one)) for at, one in zip(numbers, scores, strict=True)])
                    bar.update()
        return found


def _best(read: Callable[[list[str]], Any], documents: Any, queries: list[str], k: int) -> _Found:
    """Yield the numbers and scores of the best of all documents, (width, documents), the first ones of equals."""
    vectors = read(queries)
    for start in range(0, len(queries), _SCORED_AT_ONCE):
        scores = vectors[start : start + _SCORED_AT_ONCE] @ documents
        for row in scores if isinstance(scores, np.ndarray) else scores.toarray():
            last = np.partition(-row, min(k, len(row)) - 1)[min(k, len(row)) - 1]
            (good,) = np.nonzero(~(-row > last))  # to sort all takes longer than to score them
            best = good[np.argsort(-row[good], kind="stable")[:k]]
            yield best, row[best]


def _found(read: Callable[[list[str]], np.ndarray], index: VectorSearch, queries: list[str], k: int) -> _Found:
    """Yield the numbers and scores of what an index finds."""
    for part in torch.from_numpy(read(queries)).split(_SCORED_AT_ONCE):
        for scores, numbers in zip(*index.search(part, k), strict=True):
            yield numbers[numbers >= 0].numpy(), scores[numbers >= 0].numpy()


def names_near(retriever: Any, texts: Sequence[str], k: int) -> list[list[str]]:
    """Return the names of up to k documents nearest to each text, the nearest first; none for one without words."""
    asked = [text for text in texts if text.strip()]
    found = iter(retriever.retrieve(asked, k) if asked else [])
    return [[name for name, _ in next(found)] if text.strip() else [] for text in texts]


def check_documents(documents: Mapping[str, str]) -> None:
    """Raise a ValueError if `documents` is no mapping, there is no document, or one has no text."""
    if not isinstance(documents, Mapping) or not documents:
        raise ValueError(
            f"documents must be one text or more by id, got a {type(documents).__name__}: {documents!r:.40}"
        )
    for name, text in documents.items():
        if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
            raise ValueError(f"a document must have an id and text, and {name!r} is {text!r:.40}; leave it out")
        check_letters(name + text, f"document {name!r}")


def check_queries(queries: Sequence[str], k: int) -> None:
    """Raise a ValueError if `queries` is no list of texts or holds one without text, or `k` is not 1 or more."""
    check_texts(queries, "queries")
    if not all(map(str.strip, queries)):
        raise ValueError(f"a query must have text, got {list(queries)!r:.60}; leave out empty ones")
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be an integer, 1 or more, got {k!r}")
