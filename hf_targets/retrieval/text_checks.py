"""What documents, queries and their vectors must be."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from hf_targets.data.words import check_letters


def checked_texts(documents: Mapping[str, str]) -> list[str]:
    """Return the texts of documents.

    Raises:
        ValueError: If `documents` is no mapping, there is no document, or one has no text.
    """
    if not isinstance(documents, Mapping):
        raise ValueError(f"documents must be a mapping of ids to texts, got {type(documents).__name__}; name the texts")
    if not documents:
        raise ValueError("there must be a document to retrieve, got none")
    for name, text in documents.items():
        check_text(name, text)
    return list(documents.values())


def check_text(name: str, text: str) -> None:
    """Check that a document has text.

    Raises:
        ValueError: If it has none, or half a letter.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a document must have text, and document {name!r} is {text!r}; leave it out")
    check_letters(text, f"document {name!r}")


def check_queries(queries: Sequence[str], k: int) -> None:
    """Check the arguments of `retrieve`.

    Raises:
        ValueError: If `queries` is a single text or holds one without text or with half a letter, or `k` is below 1.
    """
    if isinstance(queries, str):
        raise ValueError(f"queries must be a list of texts, got the text {queries[:40]!r}; put it in a list")
    if not isinstance(queries, Sequence):
        raise ValueError(f"queries must be a list of texts, got a {type(queries).__name__}; make it a list")
    for index, query in enumerate(queries):
        if not isinstance(query, str) or not query.strip():
            raise ValueError(f"a query must have text, and query {index} is {query!r}; leave it out")
        check_letters(query, f"query {index}")
    check_count(k)


def check_count(k: Any) -> int:
    """Return the number of results that a search is asked for, as an `int`.

    Raises:
        ValueError: If it is no integer, or below 1.
    """
    if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
        raise ValueError(f"k must be an integer, 1 or more, got {k!r}")
    return int(k)


def vectors_of(texts: list[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
    """Return the vectors of texts, (texts, dim), float32 on the CPU.

    Raises:
        ValueError: If `encode` does not return finite vectors, one a text.
    """
    vectors = encode(texts).detach().to("cpu", torch.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.isfinite().all():
        finite = "finite" if vectors.isfinite().all() else "not finite"
        raise ValueError(
            f"encode must return finite vectors (texts, dim) for {len(texts)} texts, got shape "
            f"{tuple(vectors.shape)}, {finite}"
        )
    return vectors


def query_vectors(queries: list[str], encode: Callable[[list[str]], Tensor], dim: int) -> Tensor:
    """Return the vectors of queries, (queries, dim), float32 on the CPU.

    Raises:
        ValueError: As `vectors_of`, or if the vectors are not as wide as those of the documents.
    """
    vectors = vectors_of(queries, encode)
    if vectors.shape[1] != dim:
        raise ValueError(
            f"queries must have vectors as wide as the documents', {dim}, got {vectors.shape[1]}; use encoders that "
            f"were trained together"
        )
    return vectors
