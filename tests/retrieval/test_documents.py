"""A retriever finds the documents of the highest inner product, or of the rarest shared words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.retrieval.documents import DocumentRetriever
from hf_targets.retrieval.vector_index import VectorIndex
from tests.retrieval.letter_encoder import LetterEncoder

pytest.importorskip("sklearn")
SHELF = {
    "pets": "The cat sat on the mat and the dog slept beside the cat.",
    "sky": "Stars and planets shine at night; a planet has no light of its own.",
    "law": "The court may grant leave to appeal where the appeal has a prospect of success.",
    "größe": "Die Größe des Körpers misst man in Metern.",
}
letters = LetterEncoder().encode_query


@given(
    texts=st.lists(st.text("abcde", min_size=1, max_size=12), min_size=1, max_size=12),
    queries=st.lists(st.text("abcde", min_size=1, max_size=12), max_size=5),
    k=st.integers(1, 15),
)
def test_the_nearest_documents_are_those_of_the_highest_inner_product(texts, queries, k):
    documents = {f"document {index}": text for index, text in enumerate(texts)}
    found = DocumentRetriever(documents, LetterEncoder()).retrieve(queries, k)
    assert len(found) == len(queries)
    for query, row in zip(queries, found, strict=True):
        scores = {name: float(letters([query])[0] @ letters([text])[0]) for name, text in documents.items()}
        assert row == sorted(scores.items(), key=lambda pair: -pair[1])[:k]


@given(texts=st.lists(st.text("ab ", min_size=1).filter(str.strip), min_size=1, max_size=8), k=st.integers(1, 9))
def test_no_document_is_lexically_nearer_than_the_text_itself(texts, k):
    documents = {str(index): text for index, text in enumerate(texts)}
    for row in DocumentRetriever.lexical(documents).retrieve(texts, k):
        scores = [score for _, score in row]
        assert scores == sorted(scores, reverse=True) and len(row) == min(k, len(texts))
        assert scores[0] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("query", "name"),
    [("our cats and a dog", "pets"), ("PLANET!", "sky"), ("leave to appeal?", "law"), ("größe in metern", "größe")],
)
def test_shared_rare_words_find_a_document(query, name):
    assert DocumentRetriever.lexical(SHELF).retrieve([query], 1)[0][0][0] == name


def test_documents_without_a_shared_word_come_last_in_their_order_with_score_0():
    row = DocumentRetriever.lexical(SHELF).retrieve(["planet"], 9)[0]
    assert [name for name, _ in row] == ["sky", "pets", "law", "größe"]
    assert [score for _, score in row[1:]] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("make", [DocumentRetriever.lexical, lambda shelf: DocumentRetriever(shelf, LetterEncoder())])
def test_many_queries_find_what_each_finds_alone(make):
    retriever, queries = make(SHELF), [*SHELF.values()] * 20
    assert len(retriever) == 4
    for query, row in zip(queries, retriever.retrieve(queries, 2), strict=True):
        alone = retriever.retrieve([query], 2)[0]
        assert [name for name, _ in row] == [name for name, _ in alone]
        assert [score for _, score in row] == pytest.approx([score for _, score in alone])
    assert retriever.retrieve([], 2) == []


def test_queries_are_read_by_the_encoder_of_queries():
    encoder = LetterEncoder()
    encoder.encode_document, encoder.encode_query = letters, lambda texts: -letters(texts)
    turned, plain = (DocumentRetriever(SHELF, one).retrieve(["abcd"], 4)[0] for one in (encoder, LetterEncoder()))
    assert dict(turned) == {name: -score for name, score in plain}


@pytest.mark.parametrize("make", [DocumentRetriever.lexical, lambda shelf: DocumentRetriever(shelf, LetterEncoder())])
@pytest.mark.parametrize("documents", [{}, {"a": "text", "b": " \n"}, {"a": None}, {1: "text"}, ["a text"]], ids=str)
def test_bad_documents_are_refused(make, documents):
    with pytest.raises(ValueError, match="document"):
        make(documents)


def test_what_is_no_encoder_is_refused():
    with pytest.raises(ValueError, match="SentenceTransformer"):
        DocumentRetriever(SHELF, "all-MiniLM-L6-v2")


@pytest.mark.parametrize("vectors", [torch.randn(3, 2), torch.randn(4), torch.full((4, 2), float("nan"))])
def test_vectors_that_are_not_finite_rows_one_a_text_are_refused(vectors):
    encoder = LetterEncoder()
    encoder.encode_document = lambda texts: vectors
    with pytest.raises(ValueError, match="finite vectors"):
        DocumentRetriever(SHELF, encoder)


def test_over_an_index_of_the_documents_vectors_it_finds_what_it_finds_in_memory():
    pytest.importorskip("faiss")
    index = VectorIndex.build(letters(list(SHELF.values())))
    queries = ["a bad cab", "dead bee", "abcde"]
    found = DocumentRetriever.over(list(SHELF), LetterEncoder(), index).retrieve(queries, 4)
    expected = DocumentRetriever(SHELF, LetterEncoder()).retrieve(queries, 4)
    for one, other in zip(found, expected, strict=True):  # equals are in any order
        assert dict(one) == dict(other) and [score for _, score in one] == [score for _, score in other]
    with pytest.raises(ValueError, match="for each of 2 ids, got 4"):
        DocumentRetriever.over(["pets", "sky"], LetterEncoder(), index)
    with pytest.raises(ValueError, match="by distance"):
        DocumentRetriever.over("abc", LetterEncoder(), VectorIndex.build(torch.eye(3), metric="distance"))
