"""What an answer has from documents is told from its phrases, and their markers are always right."""

import random

import pytest

from hf_targets.phrases.citations import citing_phrases, mark_sources
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from hf_targets.phrases.provenance import Provenance, provenance_of
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan, PhraseVocabulary
from tests.small_tokenizers import BPE, LEGACY, METASPACE

TEXTS = ["the cat sat on the mat, 東京 🙂. A dog", "a dog saw the cat. It sat", "the flat mat é [3] and the cat"]
DOCUMENTS = {str(number): text for number, text in enumerate(TEXTS, start=1)}
subwords = pytest.mark.parametrize("tokenizer", [BPE, METASPACE, LEGACY], ids=["bpe", "metaspace", "legacy"])
miners = pytest.mark.parametrize("miner", [WordNgrams(max_tokens=12), TokenNgrams(2, 4)], ids=["words", "tokens"])


def written(vocabulary, tokenizer, seed):
    """Return a text of random phrases and tokens, its phrases, and how many they are."""
    generator = random.Random(seed)
    tokens = tokenizer.encode("the dog sat. on a mat", add_special_tokens=False)
    ids = [generator.choice([*tokens, *generator.sample(list(vocabulary), 8)]) for _ in range(30)]
    return vocabulary.decode(ids), vocabulary.spans(ids), sum(id_ in vocabulary for id_ in ids)


@subwords
@miners
def test_every_marker_of_a_phrase_names_a_document_that_has_it(tokenizer, miner):
    vocabulary = citing_phrases(TEXTS, tokenizer, miner)
    for seed in range(20):
        text, spans, num_phrases = written(vocabulary, tokenizer, seed)
        found = provenance_of(text, spans, DOCUMENTS)
        assert found.num_of_phrases == found.num_right == num_phrases > 0
        assert set(found.documents) == {source.document for span in spans for source in span.sources}


@subwords
def test_markers_put_in_afterwards_are_right_too(tokenizer):
    vocabulary = PhraseVocabulary.from_documents(DOCUMENTS, tokenizer, WordNgrams(max_tokens=12))
    for seed in range(20):
        text, spans, _ = written(vocabulary, tokenizer, seed)
        marked, moved = mark_sources(text, spans, {name: int(name) for name in DOCUMENTS})
        found = provenance_of(marked, moved, DOCUMENTS)
        assert found.num_of_phrases == found.num_right > 0
        assert found.num_characters >= found.num_from_documents > 0


def span(text, phrase, *sources):
    start = text.index(phrase)
    return PhraseSpan(start, start + len(phrase), 9, phrase, tuple(PhraseSource(*source) for source in sources))


def test_markers_of_no_phrase_and_wrong_ones_are_counted_apart():
    text = "A cat[1] slept[2] on the mat[1]."
    spans = [span(text, " cat[1]", ("1", 4, 7)), span(text, " the mat[1]", ("1", 0, 3))]
    found = provenance_of(text, spans, DOCUMENTS)
    assert found == Provenance(18, 9, 3, 2, 1, ("1",))


def test_a_marker_of_another_document_than_the_phrase_s_is_of_no_phrase():
    text = "A cat[2]"
    assert provenance_of(text, [span(text, " cat[2]", ("1", 4, 7))], DOCUMENTS) == Provenance(4, 3, 1, 0, 0, ("1",))


def test_a_phrase_of_another_document_or_a_list_is_from_no_document():
    text = "a cat on a mat"
    spans = [span(text, " cat", ("other", 0, 4)), span(text, " mat")]
    assert provenance_of(text, spans, DOCUMENTS) == Provenance(10, 0, 0, 0, 0, ())


def test_brackets_of_a_document_are_no_marker_of_its_phrase():
    text = "mat é [3]"
    assert provenance_of(text, [span(text, text, ("3", 9, 18))], DOCUMENTS).num_of_phrases == 0
    text += "[3]"
    found = provenance_of(text, [span(text, text, ("3", 9, 18))], DOCUMENTS)
    assert (found.num_markers, found.num_of_phrases, found.num_right) == (2, 1, 1)
