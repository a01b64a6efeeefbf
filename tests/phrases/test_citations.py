"""Phrases that end with their document's marker cite it, and phrases without one can be marked afterwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.evaluation.citations import citation_scores
from hf_targets.evaluation.sentences import train_splitter
from hf_targets.phrases.citations import citing_phrases, mark_sources, marker_of, with_source_markers
from hf_targets.phrases.mining.miner import MarkablePhrases
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from hf_targets.phrases.vocabulary.vocabulary import PhraseSource, PhraseSpan, PhraseVocabulary
from tests.small_tokenizers import BPE, METASPACE, WORDS

DOCUMENTS = ["the cat sat on the mat", "a dog sat on the mat and slept", "nothing here sleeps"]


@pytest.mark.parametrize("tokenizer", [BPE, METASPACE], ids=["bpe", "metaspace"])
@pytest.mark.parametrize("miner", [WordNgrams(max_tokens=12), TokenNgrams(2, 4)], ids=["words", "tokens"])
def test_phrases_are_those_without_markers_and_end_with_the_marker_of_their_one_document(tokenizer, miner):
    vocabulary = citing_phrases(DOCUMENTS, tokenizer, miner)
    plain = {
        number: PhraseVocabulary.from_documents([text], tokenizer, MarkablePhrases(miner))
        for number, text in enumerate(DOCUMENTS, 1)
    }
    assert len(vocabulary) == sum(map(len, plain.values()))
    for phrase in vocabulary:
        [document] = {source.document for source in vocabulary.sources(phrase)}
        text, marker = vocabulary.text(phrase), marker_of(int(document))
        assert text.endswith(marker)
        unmarked = {plain[int(document)].text(one) for one in plain[int(document)]}
        assert text.removesuffix(marker) in unmarked
        for source in vocabulary.sources(phrase):
            assert DOCUMENTS[int(document) - 1][source.start : source.end].strip() == text.removesuffix(marker).strip()


def test_a_text_of_such_phrases_is_scored_by_its_citations():
    vocabulary = citing_phrases(DOCUMENTS, BPE, WordNgrams(max_tokens=12))
    by_text = {vocabulary.text(phrase): phrase for phrase in vocabulary}
    answer = vocabulary.decode([by_text[" cat sat[1]"], *BPE.encode(".")])
    documents = [{"title": "", "text": text} for text in DOCUMENTS]
    assert answer.strip() == "cat sat[1]."
    scores = citation_scores(answer, documents, lambda premise, claim: "cat sat" in premise, split=train_splitter([]))
    assert scores == (100, 100)


def span(start, end, *documents):
    return PhraseSpan(start, end, 0, "", tuple(PhraseSource(name, 0, 1) for name in documents))


def test_markers_stand_after_phrases_and_once_after_neighbours_of_one_document():
    text = "the cat sat on a mat"
    spans = [span(3, 7, "b"), span(7, 11, "c", "b"), span(14, 16, "x"), span(16, 20, "a")]
    assert with_source_markers(text, spans, {"a": 1, "b": 2}) == "the cat sat[2] on a mat[1]"
    assert with_source_markers(text, spans, {"a": 1, "c": 3, "b": 2}) == "the cat[2] sat[3] on a mat[1]"
    assert with_source_markers(text, spans, {}) == text


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.sampled_from("abc"))))
def test_without_the_markers_the_text_is_what_it_was(steps):
    text, spans = "", []
    for length, gap, name in steps:
        text += "." * gap
        spans.append(span(len(text), len(text) + length, name))
        text += name * length
    marked = with_source_markers(text, spans, {"a": 1, "b": 2})
    assert marked.replace("[1]", "").replace("[2]", "") == text
    assert marked.count("[") <= sum(name != "c" for *_, name in steps)


def test_missing_documents_texts_and_markers_are_named():
    with pytest.raises(ValueError, match="citations need documents"):
        citing_phrases([], BPE, TokenNgrams())
    with pytest.raises(ValueError, match="list of texts"):
        citing_phrases({"a": "a cat"}, BPE, TokenNgrams())
    with pytest.raises(ValueError, match="each with text"):
        citing_phrases(["a cat", " "], BPE, TokenNgrams())
    with pytest.raises(ValueError, match="'b' has none"):
        PhraseVocabulary.from_documents({"a": "a cat", "b": "a dog"}, BPE, TokenNgrams(), markers={"a": "[1]"})


TWO_SENTENCES = ["the cat sat on the mat. The dog saw it, e.g. a mat"]


def cited_texts(**settings):
    vocabulary = citing_phrases(TWO_SENTENCES, BPE, WordNgrams(2, 3), **settings)
    return {vocabulary.text(phrase).strip() for phrase in vocabulary}


def test_no_phrase_carries_its_marker_into_the_next_sentence():
    kept, every = cited_texts(), cited_texts(only_markable=False)
    assert kept < every
    assert {"the mat. The[1]", "on the mat.[1]", "mat. The[1]"} <= every - kept
    assert {"the mat[1]", "The dog saw[1]", "e.g. a[1]", "a mat[1]"} - kept == {"the mat[1]"}  # "mat." is one word
    assert not any("mat." in text for text in kept)


def test_a_marker_of_a_kept_phrase_counts_for_its_own_sentence():
    vocabulary = citing_phrases(TWO_SENTENCES, BPE, TokenNgrams(2, 12))
    documents = [{"title": "", "text": TWO_SENTENCES[0]}]
    by_text = {vocabulary.text(phrase).strip(): phrase for phrase in vocabulary}
    answer = vocabulary.decode([by_text["the mat[1]"], *BPE.encode(". The dog")])
    sentences = ["the mat[1].", "The dog"]
    scores = citation_scores(answer, documents, lambda premise, claim: True, split=lambda text: sentences)
    assert " ".join(sentences) == answer.strip()
    assert scores == (50, 100)


def test_a_tokenizer_that_cannot_write_a_marker_is_refused():
    with pytest.raises(ValueError, match=r"writes '\[1\]' as ' ?<unk>'; take phrases without markers"):
        citing_phrases(DOCUMENTS, WORDS, WordNgrams())


def test_phrases_are_where_they_were_after_their_text_is_marked():
    text = "the cat sat on a mat"
    spans = [span(3, 7, "b"), span(7, 11, "b"), span(16, 20, "a")]
    marked, moved = mark_sources(text, spans, {"a": 1, "b": 2})
    assert [marked[one.start : one.end] for one in moved] == [" cat", " sat", " mat"]
    assert marked == with_source_markers(text, spans, {"a": 1, "b": 2}) == "the cat sat[2] on a mat[1]"
