"""Phrases that end with their document's marker cite it; others are marked afterwards."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.evaluation.citations import citation_scores
from hf_targets.phrases.citations import citing_phrases, mark_sources, marker_of
from hf_targets.phrases.mining.miner import MarkablePhrases
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from hf_targets.phrases.vocabulary.vocabulary import PhraseSource, PhraseSpan, PhraseVocabulary
from tests.small_tokenizers import BPE, LEGACY, METASPACE, WORDS

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


def span(start, end, *documents):
    return PhraseSpan(start, end, 0, "", tuple(PhraseSource(name, 0, 1) for name in documents))


def test_markers_stand_after_phrases_and_once_after_neighbours_of_one_document():
    text = "the cat sat on a mat"
    spans = [span(3, 7, "b"), span(7, 11, "c", "b"), span(14, 16, "x"), span(16, 20, "a")]
    assert mark_sources(text, spans, {"a": 1, "b": 2})[0] == "the cat sat[2] on a mat[1]"
    assert mark_sources(text, spans, {"a": 1, "c": 3, "b": 2})[0] == "the cat[2] sat[3] on a mat[1]"
    assert mark_sources(text, spans, {})[0] == text
    marked, [kept] = mark_sources("the bank, a banker", [span(3, 8, "a"), span(11, 16, "a")], {"a": 1})
    assert (marked, marked[kept.start : kept.end]) == ("the bank[1], a banker", " bank")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.sampled_from("abc"))))
def test_without_the_markers_the_text_is_what_it_was(steps):
    text, spans = "", []
    for length, gap, name in steps:
        text += "." * gap
        spans.append(span(len(text), len(text) + length, name))
        text += name * length
    marked, _ = mark_sources(text, spans, {"a": 1, "b": 2})
    assert marked.replace("[1]", "").replace("[2]", "") == text
    assert marked.count("[") <= sum(name != "c" for *_, name in steps)


TWO_SENTENCES = ["the cat sat on the mat. The dog saw it, e.g. a mat"]


def test_no_phrase_carries_its_marker_into_the_next_sentence():
    miner = WordNgrams(2, 3)
    vocabularies = (
        citing_phrases(TWO_SENTENCES, BPE, miner),
        PhraseVocabulary.from_documents({"1": TWO_SENTENCES[0]}, BPE, miner, markers={"1": "[1]"}),
    )
    kept, every = ({one.text(phrase).strip() for phrase in one} for one in vocabularies)
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
    assert " ".join(sentences) == answer.strip()
    for split, expected in ((lambda text: sentences, (50, 100)), (lambda text: sentences[:1], (100, 100))):
        assert citation_scores(answer, documents, lambda premise, claim: True, split=split) == expected


@pytest.mark.parametrize("documents", [[], {"a": "a cat"}, ["a cat", " "]])
def test_missing_documents_and_texts_are_refused(documents):
    with pytest.raises(ValueError, match=r"text|document"):
        citing_phrases(documents, BPE, TokenNgrams())


def test_a_tokenizer_that_cannot_write_a_marker_is_refused():
    with pytest.raises(ValueError, match="without markers"):
        citing_phrases(DOCUMENTS, WORDS, WordNgrams())


TEXTS = ["the cat sat on the mat, 東京 🙂. A dog", "a dog saw the cat. It sat", "the flat mat é [3] and the cat"]
NAMED = {str(number): text for number, text in enumerate(TEXTS, start=1)}


@pytest.mark.parametrize("tokenizer", [BPE, METASPACE, LEGACY], ids=["bpe", "metaspace", "legacy"])
def test_markers_put_in_afterwards_name_documents_that_have_the_phrase(tokenizer):
    vocabulary = PhraseVocabulary.from_documents(NAMED, tokenizer, WordNgrams(max_tokens=12))
    tokens = tokenizer.encode("the dog sat. on a mat", add_special_tokens=False)
    generator = random.Random(0)
    for _ in range(20):
        ids = [generator.choice([*tokens, *generator.sample(list(vocabulary), 8)]) for _ in range(30)]
        markers = {name: int(name) for name in NAMED}
        marked, moved = mark_sources(vocabulary.decode(ids), vocabulary.spans(ids), markers)
        assert [marked[span.start : span.end] for span in moved] == [span.text for span in moved]
        ends = [(span, found[1]) for span in moved if (found := re.match(r"\[(\d)\]", marked[span.end :]))]
        assert ends
        for span, name in ends:
            [source] = [source for source in span.sources if source.document == name][:1]
            assert NAMED[name][source.start : source.end].split() == span.text.split()
