"""A pool gives each prompt the phrases of its nearest documents, and mines each text once."""

from typing import Any

import pytest
import torch

from hf_targets.phrases.mining.miner import MinedText
from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.pool import PhrasePool
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.collection import DocumentCollection
from hf_targets.retrieval.documents import DocumentRetriever
from tests.retrieval.letter_encoder import LetterEncoder
from tests.small_tokenizers import WORDS
from tests.tiny_models import VOCAB, make_dynamic_model

DOCUMENTS = {"cats": "the cat sat on the mat", "dogs": "a dog and the cat ran", "house": "the house and the mat"}
PROMPTS = ["a dog ran", "the mat of the house"]


@pytest.fixture
def mined(monkeypatch):
    """Return the list of the documents that are mined."""
    texts, of = [], MinedText.of
    monkeypatch.setattr(MinedText, "of", lambda text, *given, **named: texts.append(text) or of(text, *given, **named))
    return texts


def make_pool(**options) -> PhrasePool:
    return PhrasePool(DOCUMENTS, WORDS, TokenNgrams(2, 3), **{"num_documents": 2, **options})


def phrases_in(vocabulary):
    return {vocabulary.token_ids(phrase): vocabulary.sources(phrase) for phrase in vocabulary}


def test_each_prompt_gets_the_phrases_of_its_nearest_documents():
    retrieved = DocumentRetriever.lexical(DOCUMENTS).retrieve(PROMPTS, 2)
    for vocabulary, found in zip(make_pool().phrases_for(PROMPTS), retrieved, strict=True):
        nearest = {name: DOCUMENTS[name] for name, _ in found}
        expected = PhraseVocabulary.from_documents(nearest, WORDS, TokenNgrams(2, 3))
        assert phrases_in(vocabulary) == phrases_in(expected)
        assert list(vocabulary) == list(expected)


def test_a_text_that_changes_is_mined_again(mined):
    documents = dict(DOCUMENTS)
    pool = PhrasePool(documents, WORDS, TokenNgrams(2, 3), num_documents=3)
    pool.phrases_for(PROMPTS)
    documents["cats"] = "a dog sat on the house"
    found = pool.phrases_for(PROMPTS)
    assert mined[3:] == ["a dog sat on the house"]
    expected = phrases_in(PhraseVocabulary.from_documents(documents, WORDS, TokenNgrams(2, 3)))
    for vocabulary in map(phrases_in, found):
        assert {phrase: {*of} for phrase, of in vocabulary.items()} == {
            phrase: {*of} for phrase, of in expected.items()
        }
    del documents["cats"]
    for wrong, says in ((PROMPTS, "document 'cats'"), ("a dog", "list of texts")):
        with pytest.raises(ValueError, match=says):
            pool.phrases_for(wrong)


def test_a_collection_may_be_the_documents_and_the_retriever(tmp_path):
    pytest.importorskip("lancedb")
    collection = DocumentCollection.create(tmp_path / "shelf", LetterEncoder())
    collection.add(DOCUMENTS)
    pool = PhrasePool(collection, WORDS, TokenNgrams(2, 3), retriever=collection, num_documents=2)
    in_memory = DocumentRetriever(DOCUMENTS, LetterEncoder())
    expected = make_pool(retriever=in_memory).phrases_for(PROMPTS)
    assert [phrases_in(one) for one in pool.phrases_for(PROMPTS)] == [phrases_in(one) for one in expected]
    collection.delete(["cats"])
    collection.add({"dogs": "the dog and the house", "birds": "the cat sat"}, replace=True)
    for vocabulary, row in zip(pool.phrases_for(PROMPTS), collection.retrieve(PROMPTS, 2), strict=True):
        nearest = PhraseVocabulary.from_documents({name: collection[name] for name, _ in row}, WORDS, TokenNgrams(2, 3))
        assert phrases_in(vocabulary) == phrases_in(nearest)


def test_embeddings_of_a_collections_phrases_lie_beside_its_documents_for_the_next_process(tmp_path, encoded):
    pytest.importorskip("lancedb")
    DocumentCollection.create(tmp_path, LetterEncoder()).add(DOCUMENTS)

    def rows(change=0.0, num_documents=3):
        collection = DocumentCollection.open(tmp_path, LetterEncoder())
        model: Any = make_dynamic_model()
        model.generation_config.eos_token_id = WORDS.eos_token_id
        settings = {"num_documents": num_documents, "vocab_size": VOCAB}
        pool = PhrasePool(collection, WORDS, TokenNgrams(2, 3), retriever=collection, **settings)
        with torch.no_grad():
            model.phrase_encoder.input_projection[-1].bias += change
            table = model.phrase_table(pool.phrases_for(PROMPTS[:1]))
        return table.inputs[table.slots[0]]

    cold = rows()
    assert torch.equal(rows(), cold)
    rows(num_documents=2)  # of documents that were encoded together with another one
    assert len(encoded) == 1
    torch.testing.assert_close(rows(change=1.0), cold + 1.0)
    assert len(encoded) == 2
