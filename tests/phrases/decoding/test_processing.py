"""Processors over tokens and phrases: by definition, on the text with its phrases expanded."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.matching import PhraseLookup
from hf_targets.phrases.decoding.processing import PhraseProcessors, phrase_processors
from tests.phrases.models import vocabulary_of
from tests.tiny_models import VOCAB, takes_lengths

FIRST = vocabulary_of([1, 2], [2, 3, 1], [3, 3], [1, 2, 3, 4], [4, 1, 1])
SECOND = vocabulary_of([2, 1], [3, 4], [1, 1, 2], [4, 4], [1, 3])
IDS = st.lists(st.one_of(st.integers(1, 4), st.integers(VOCAB, VOCAB + 4)), min_size=5, max_size=5)
ROWS = st.lists(IDS, min_size=4, max_size=4)  # two rows of each vocabulary
WIDTH = VOCAB + 5
END = torch.tensor([0])


def processed(processor, rows, scores=None):
    """Return the scores of four rows, before and after."""
    if scores is None:
        scores = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    expansion = Expansion([FIRST, SECOND])
    after = phrase_processors([processor], expansion, VOCAB)(torch.tensor(rows), scores.clone())
    assert after.shape == scores.shape
    return scores, after


def by_row(rows):
    """Yield each row's number, its text, and the ids that it may go on with, each with its tokens."""
    for number, row in enumerate(rows):
        vocabulary = (FIRST, SECOND)[number // 2]
        following = [(id_, vocabulary.expand([id_])) for id_ in range(WIDTH)]
        yield number, vocabulary.expand(row), following


def check_blocked(processor, rows, is_blocked):
    before, after = processed(processor, rows)
    for number, text, following in by_row(rows):
        expected = [is_blocked(text, tokens) for _, tokens in following]
        assert (after[number] == -torch.inf).tolist() == expected
        assert torch.equal(after[number][~torch.tensor(expected)], before[number][~torch.tensor(expected)])


def stands_in(part, text):
    return any(text[start : start + len(part)] == part for start in range(len(text) - len(part) + 1))


@given(ROWS, st.integers(0, 4))
def test_repetition_penalty_is_on_tokens_and_phrases_that_stand_in_the_text(rows, ignored):
    before, after = processed(theirs.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=ignored), rows)
    for number, _, following in by_row(rows):
        seen = (FIRST, SECOND)[number // 2].expand(rows[number][ignored:])  # steps, whatever they hold
        for id_, tokens in following:
            score = before[number, id_]
            expected = score * 1.5 if score < 0 else score / 1.5
            assert after[number, id_] == (expected if stands_in(tokens, seen) else score)


@pytest.mark.skipif(not takes_lengths(), reason="Transformers before 5.23 takes one length for all rows")
def test_repetition_penalty_ignores_the_padding_of_each_row():
    rows = [[0, 0, 1, 2], [0, 5, 5, 5], [5, 5, 5, 5], [0, 0, 0, 5]]
    padding = torch.tensor([2, 1, 0, 3])
    before, after = processed(theirs.RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=padding), rows)
    changed = [(before[row] != after[row]).nonzero().flatten().tolist() for row in range(4)]
    assert changed == [[1, 2, VOCAB], [5], [5], [5]]


def repeats_ngram(text, tokens, size):
    joined = text + tokens
    ngrams = [joined[start : start + size] for start in range(len(joined) - size + 1)]
    first_new = max(0, len(text) - size + 1)
    return any(ngram in ngrams[:index] for index, ngram in enumerate(ngrams) if index >= first_new)


@given(ROWS, st.integers(1, 4))
def test_blocked_ngrams_are_those_of_the_expanded_text(rows, size):
    check_blocked(theirs.NoRepeatNGramLogitsProcessor(size), rows, lambda *texts: repeats_ngram(*texts, size))


def completes(sequences):
    def is_blocked(text, tokens):
        joined = text + tokens
        ends = range(len(text) + 1, len(joined) + 1)
        return any(end >= len(s) and joined[end - len(s) : end] == s for end in ends for s in sequences)

    return is_blocked


@given(ROWS, st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3))
def test_bad_words_also_block_phrases_that_would_write_them(rows, words):
    check_blocked(theirs.NoBadWordsLogitsProcessor(words, END), rows, completes(words))


@given(ROWS, st.lists(st.integers(1, 5), min_size=1, max_size=2))
def test_suppressed_tokens_also_block_phrases_that_have_them(rows, suppressed):
    check_blocked(theirs.SuppressTokensLogitsProcessor(suppressed), rows, completes([[token] for token in suppressed]))


@pytest.mark.parametrize(("begin", "blocked"), [(5, True), (4, False), (9, False)])
def test_tokens_suppressed_at_the_beginning_also_block_phrases_that_begin_with_them(begin, blocked):
    rows = [[VOCAB, VOCAB + 1, 1, 2, VOCAB + 3]] * 4  # five steps, which are more tokens
    processor = theirs.SuppressTokensAtBeginLogitsProcessor([1, 3], begin)
    check_blocked(processor, rows, lambda text, tokens: blocked and tokens[0] in (1, 3))


class Recorder(theirs.LogitsProcessor):
    """Keeps what it is given, and takes one from every score."""

    def __call__(self, input_ids, scores):
        self.input_ids, self.scores = input_ids, scores
        return scores - 1


def test_own_processors_see_expanded_ids_padded_on_the_left_and_all_scores():
    recorder = Recorder()
    rows = torch.tensor([[7, VOCAB + 1], [VOCAB + 3, VOCAB], [5, 6], [VOCAB + 1, 6]])
    scores = torch.randn(4, WIDTH)
    after = PhraseProcessors([recorder], Expansion([FIRST, SECOND], pad_id=9), VOCAB)(rows, scores)
    assert recorder.input_ids.tolist() == [
        [9, 9, 7, 2, 3, 1],
        [1, 2, 3, 4, 1, 2],
        [9, 9, 9, 9, 5, 6],
        [9, 9, 9, 3, 4, 6],
    ]
    assert recorder.scores is scores
    assert torch.equal(after, scores - 1)


def test_processors_are_applied_in_their_order():
    order = [Recorder(), theirs.TemperatureLogitsWarper(2.0), theirs.NoRepeatNGramLogitsProcessor(1), Recorder()]
    scores = torch.ones(4, WIDTH)
    after = phrase_processors(order, Expansion([FIRST, SECOND]), VOCAB)(torch.tensor([[1]] * 4), scores)
    assert torch.equal(order[3].scores, after + 1)
    assert (after[:, 5] == -1).all() and (after[:, 1] == -torch.inf).all()


@given(IDS)
def test_a_text_of_tokens_alone_has_the_scores_of_transformers_on_tokens(row):
    row = [id_ for id_ in row if id_ < VOCAB] or [1]
    processors = [
        theirs.RepetitionPenaltyLogitsProcessor(1.3),
        theirs.NoRepeatNGramLogitsProcessor(2),
        theirs.NoBadWordsLogitsProcessor([[1, 2], [4]], END),
        theirs.SequenceBiasLogitsProcessor([[[3], 2.0]]),
        theirs.EncoderRepetitionPenaltyLogitsProcessor(1.2, torch.tensor([[2, 3]])),
    ]
    ids, scores = torch.tensor([row]), torch.randn(1, VOCAB)
    for processor in processors:
        expected = processor(ids, scores.clone())
        assert torch.equal(phrase_processors([processor], Expansion([vocabulary_of()]), VOCAB)(ids, scores), expected)


TOKENS = st.integers(1, 3)
VOCABULARIES = st.lists(st.lists(TOKENS, min_size=2, max_size=6), max_size=12).map(lambda rows: vocabulary_of(*rows))
SEQUENCES = st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(tuple), max_size=4)


def slots_where(vocabulary, holds):
    return {id_ - VOCAB for id_ in vocabulary if holds(vocabulary.token_ids(id_))}


@given(VOCABULARIES, st.lists(TOKENS, max_size=9), SEQUENCES)
def test_phrases_that_complete_a_sequence(vocabulary, text, sequences):
    is_blocked = completes([list(sequence) for sequence in sequences])
    expected = slots_where(vocabulary, lambda phrase: is_blocked(text, list(phrase)))
    assert PhraseLookup(vocabulary).completing(text, sequences) == expected


@given(VOCABULARIES, st.lists(TOKENS, max_size=9), st.integers(1, 4))
def test_phrases_that_repeat_an_ngram(vocabulary, text, size):
    expected = slots_where(vocabulary, lambda phrase: repeats_ngram(text, list(phrase), size))
    assert PhraseLookup(vocabulary).repeating_ngrams(text, size) == expected
