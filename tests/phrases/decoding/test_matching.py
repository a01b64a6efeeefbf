"""Which phrases have given tokens: as if each was read from its first token to its last."""

from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.phrases.decoding.matching import PhraseLookup
from tests.phrases.models import vocabulary_of
from tests.tiny_models import VOCAB

reproducible = settings(derandomize=True, deadline=None, max_examples=60)
TOKENS = st.integers(1, 3)
TEXTS = st.lists(TOKENS, max_size=9)
VOCABULARIES = st.lists(st.lists(TOKENS, min_size=2, max_size=6), max_size=12).map(lambda rows: vocabulary_of(*rows))
SEQUENCES = st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(tuple), max_size=4)


def slots_where(vocabulary, holds):
    return {id_ - VOCAB for id_ in vocabulary if holds(vocabulary.token_ids(id_))}


def windows(tokens, size):
    return [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]


@reproducible
@given(VOCABULARIES, TEXTS.filter(bool))
def test_phrases_are_found_by_their_first_tokens_and_by_any(vocabulary, tokens):
    lookup = PhraseLookup(vocabulary)
    tokens = tuple(tokens[:4])
    assert lookup.beginning_with(tokens) == slots_where(vocabulary, lambda phrase: phrase[: len(tokens)] == tokens)
    assert lookup.containing(tokens) == slots_where(vocabulary, lambda phrase: tokens in windows(phrase, len(tokens)))


@reproducible
@given(VOCABULARIES, TEXTS)
def test_phrases_that_stand_in_a_text(vocabulary, text):
    found = PhraseLookup(vocabulary).standing_in(text)
    assert found == slots_where(vocabulary, lambda phrase: phrase in windows(text, len(phrase)))


@reproducible
@given(VOCABULARIES, TEXTS, SEQUENCES)
def test_phrases_that_complete_a_sequence(vocabulary, text, sequences):
    def completes(phrase):
        ends = range(len(text) + 1, len(text) + len(phrase) + 1)
        joined = (*text, *phrase)
        return any(end >= len(s) and joined[end - len(s) : end] == s for end in ends for s in sequences)

    assert PhraseLookup(vocabulary).completing(text, sequences) == slots_where(vocabulary, completes)


@reproducible
@given(VOCABULARIES, TEXTS, st.integers(1, 4))
def test_phrases_that_repeat_an_ngram(vocabulary, text, size):
    def repeats(phrase):
        all_of_them = windows((*text, *phrase), size)
        before = len(windows(text, size))
        return any(ngram in all_of_them[:index] for index, ngram in enumerate(all_of_them) if index >= before)

    assert PhraseLookup(vocabulary).repeating_ngrams(text, size) == slots_where(vocabulary, repeats)


def test_an_ngram_may_repeat_across_the_border_of_a_short_text():
    lookup = PhraseLookup(vocabulary_of([1, 1, 1], [1, 1, 2]))
    assert lookup.repeating_ngrams([1, 1], 4) == {0}


@pytest.mark.parametrize("method", ["standing_in", "containing", "beginning_with"])
def test_removed_phrases_are_not_found(method):
    vocabulary = vocabulary_of([1, 2], [1, 2, 3], [2, 3])
    vocabulary.remove([VOCAB])
    assert 0 not in getattr(PhraseLookup(vocabulary), method)([1, 2])


def test_what_is_added_later_is_not_found():
    vocabulary = vocabulary_of([1, 2])
    lookup = PhraseLookup(vocabulary)
    vocabulary.add_token_ids([[1, 2, 3]])
    assert lookup.beginning_with([1]) == {0}


def test_the_index_of_a_vocabulary_is_made_once_for_each_state_and_leaves_with_it():
    vocabulary = vocabulary_of([1, 2])
    lookup = PhraseLookup.of(vocabulary)
    assert PhraseLookup.of(vocabulary) is lookup
    vocabulary.add_token_ids([[1, 2, 3]])
    assert PhraseLookup.of(vocabulary).beginning_with([1]) == {0, 1}
    vocabulary.remove([VOCAB])
    assert PhraseLookup.of(vocabulary).beginning_with([1]) == {1}
    (gone, vocabulary) = (ref(vocabulary), None)
    assert gone() is None


def test_tokens_that_no_phrase_may_have_are_in_none():
    lookup = PhraseLookup(vocabulary_of([1, 2], [2, 3]))
    for token in (-1, VOCAB, 2**40):
        assert lookup.containing([token]) == lookup.beginning_with([token, 1]) == lookup.containing([1, token]) == set()
