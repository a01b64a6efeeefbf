"""Documents that a text is about: the ones whose phrases are worth offering to a model that goes on with the text."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.data.progress import progress
from hf_targets.data.words import word_runs
from hf_targets.extras import require
from hf_targets.retrieval.sentence_encoder import SentenceEncoder
from hf_targets.retrieval.text_checks import check_queries, checked_texts, query_vectors, vectors_of
from hf_targets.retrieval.text_vectors import Pooling
from hf_targets.retrieval.vector_index import VectorIndex

_QUERIES_AT_ONCE = 64


class _Scorer(Protocol):
    def search(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the highest scores and their documents' numbers, both (queries, k), highest first."""
        ...


class DocumentRetriever:
    """The documents nearest to a query: by inner product of dense vectors (FAISS), or by shared words (`lexical`).

    Safe to read from several threads at once where `encode` is.

    >>> shelf = DocumentRetriever.lexical({"pets": "The cat sat on the mat.", "sky": "Stars and planets shine."})
    >>> [name for name, score in shelf.retrieve(["a planet and its stars"], k=1)[0]]
    ['sky']

    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.2, with DPR as encoder.

    Args:
        documents: Texts by id.
        encode: Gives texts their vectors, (texts, dim) of any float type, each independent of the others.
        encode_queries: The same for queries, if they have an encoder of their own, as in DPR; None: `encode`.

    Raises:
        ValueError: If there is no document, one has no text, or the vectors are not finite rows, one a text.
    """

    def __init__(
        self,
        documents: Mapping[str, str],
        encode: Callable[[list[str]], Tensor],
        *,
        encode_queries: Callable[[list[str]], Tensor] | None = None,
    ) -> None:
        texts = checked_texts(documents)
        self._ids = list(documents)
        self._scorer: _Scorer = _Dense(texts, encode, encode_queries or encode)

    @classmethod
    def from_model(
        cls,
        documents: Mapping[str, str],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        query_model: PreTrainedModel | None = None,
        query_tokenizer: PreTrainedTokenizerBase | None = None,
        pooling: Pooling = "mean",
        normalize: bool = True,
        batch_size: int = 32,
        max_length: int | None = None,
    ) -> "DocumentRetriever":
        """Return a retriever by the states of any encoder or causal model; the defaults suit sentence encoders.

        For DPR give the context encoder and, as `query_model`, the question encoder, with `pooling="pooler"` and
        `normalize=False`.

        Args:
            query_model: Reads the queries; None: `model` does.
            query_tokenizer: Of `query_model`; None: the tokenizer of `model`.
            pooling: As in `text_encoder`, like what follows.
        Raises:
            ValueError: As the class and `text_encoder`.
        """
        encoder = SentenceEncoder(
            model,
            tokenizer,
            query_model=query_model,
            query_tokenizer=query_tokenizer,
            pooling=pooling,
            normalize=normalize,
            batch_size=batch_size,
            max_length=max_length,
        )
        return cls(documents, encoder, encode_queries=encoder.encode_queries)

    @classmethod
    def from_pretrained(
        cls, documents: Mapping[str, str], name: str, query_name: str | None = None, **settings: Any
    ) -> "DocumentRetriever":
        """Return a retriever by a sentence encoder, which is loaded by its name; see `SentenceEncoder.from_pretrained`.

        Raises:
            ValueError: As the class and `SentenceEncoder.from_pretrained`.
        """
        encoder = SentenceEncoder.from_pretrained(name, query_name, **settings)
        return cls(documents, encoder, encode_queries=encoder.encode_queries)

    @classmethod
    def lexical(cls, documents: Mapping[str, str]) -> "DocumentRetriever":
        """Return a retriever by the cosine of TF-IDF word weights, which takes no model.

        A word is a run of letters and digits of any script (`word_runs`): not stemmed, and not cut where no space is
        written.

        Raises:
            ValueError: If there is no document, one has no text, or none has a word.
        """
        texts = checked_texts(documents)
        retriever = cls.__new__(cls)
        retriever._ids = list(documents)
        retriever._scorer = _Lexical(texts)
        return retriever

    def __len__(self) -> int:
        return len(self._ids)

    def retrieve(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        """Return for each query the ids and scores of its `k` nearest documents, nearest first; all if there are fewer.

        Raises:
            ValueError: If `queries` is a single text or holds one without text, or `k` is below 1.
        """
        check_queries(queries, k)
        found = []
        with progress(len(queries), "matching documents", unit="query") as bar:
            for start in range(0, len(queries), _QUERIES_AT_ONCE):
                scores, numbers = self._scorer.search(queries[start : start + _QUERIES_AT_ONCE], min(k, len(self)))
                for row_scores, row_numbers in zip(scores.tolist(), numbers.tolist(), strict=True):
                    names = [self._ids[number] for number in row_numbers]
                    found.append(list(zip(names, row_scores, strict=True)))
                bar.update(len(scores))
        return found


class _Dense:
    def __init__(
        self, texts: list[str], encode: Callable[[list[str]], Tensor], encode_queries: Callable[[list[str]], Tensor]
    ) -> None:
        self._index = VectorIndex.build(vectors_of(texts, encode))
        self._encode_queries = encode_queries

    def search(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the highest inner products of vectors."""
        vectors = query_vectors(queries, self._encode_queries, self._index.dim)
        scores, numbers = self._index.search(vectors, k)
        return scores.numpy(), numbers.numpy()


class _Lexical:
    def __init__(self, texts: list[str]) -> None:
        if not any(map(word_runs, texts)):
            raise ValueError(f"documents need a word to be found by, and none of {len(texts)} has one")
        text_features = require("sklearn.feature_extraction.text", extra="phrases")
        self._words = text_features.TfidfVectorizer(analyzer=word_runs, sublinear_tf=True, dtype=np.float32)
        self._weights = self._words.fit_transform(texts).T.tocsr()

    def search(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the highest products of TF-IDF weights."""
        scores = (self._words.transform(queries) @ self._weights).toarray()
        indices = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # of equals the first, so that runs repeat
        return np.take_along_axis(scores, indices, axis=1), indices
