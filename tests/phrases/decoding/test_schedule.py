"""Vocabularies that grow while a text is written, and the table of each step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.phrases.decoding.schedule import PhraseSchedule
from hf_targets.phrases.generation import PhraseGenerationState
from tests.phrases.models import make_phrase_model, random_vocabulary, vocabulary_of
from tests.tiny_models import VOCAB

reproducible = settings(derandomize=True, deadline=None, max_examples=40)
SHARES = st.integers(0, 100).map(lambda share: share / 100)


@reproducible
@given(SHARES, SHARES, st.integers(1, 20), st.integers(0, 10_000))
def test_a_schedule_starts_with_its_share_and_only_grows_to_all(initial, added, every, num_phrases):
    schedule = PhraseSchedule(initial, added, every)
    counts = [schedule(num_tokens, num_phrases) for num_tokens in range(0, 101 * every, max(1, every // 2))]
    assert -1e-3 <= counts[0] - initial * num_phrases < 1
    assert counts == sorted(counts)
    assert counts[-1] <= num_phrases
    if initial + 100 * added >= 1:
        assert schedule(100 * every, num_phrases) == num_phrases


@reproducible
@given(SHARES, SHARES, st.integers(1, 20), st.integers(0, 60))
def test_a_share_is_added_every_so_many_tokens_and_rounded_up(initial, added, every, num_tokens):
    # in hundredths: floating shares are not exact
    share = min(100, round(100 * initial) + round(100 * added) * (num_tokens // every))
    assert PhraseSchedule(initial, added, every)(num_tokens, 700) == -(-share * 700 // 100)


def test_the_default_is_that_of_the_paper():
    schedule = PhraseSchedule()
    assert [schedule(num_tokens, 1000) for num_tokens in (0, 9, 10, 59, 60, 200)] == [700, 700, 750, 950, 1000, 1000]


@pytest.mark.parametrize("wrong", [{"initial": 1.1}, {"added": -0.1}, {"added": float("nan")}, {"every": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PhraseSchedule(**wrong)


class CountedTables:
    """`phrase_table` of a model, and what it was asked for."""

    def __init__(self):
        self.model, self.counts = make_phrase_model(), []

    def __call__(self, phrases, counts=None):
        self.counts.append(counts)
        return self.model.phrase_table(phrases, counts)


def test_a_run_makes_a_new_table_only_when_phrases_come():
    make_table = CountedTables()
    vocabularies = [random_vocabulary(10), random_vocabulary(4, seed=2)]
    run = PhraseGenerationState(make_table, vocabularies, schedule=PhraseSchedule(0.5, 0.25, every=2))
    run.prompt_length = 3
    tables = [run.table_at(torch.ones(2, length, dtype=torch.long)) for length in range(3, 10)]
    assert make_table.counts == [[5, 2], [8, 3], [10, 4]]
    assert [table.exists.sum(dim=1).tolist() for table in tables] == [[5, 2]] * 2 + [[8, 3]] * 2 + [[10, 4]] * 3
    assert {table.num_slots for table in tables} == {10}  # as wide from the first step on
    assert all(table.exists[row, :count].all() for table in tables[2:4] for row, count in ((0, 8), (1, 3)))


def test_a_run_counts_the_tokens_of_phrases_and_those_of_each_vocabulary_apart():
    phrases = vocabulary_of([5, 6, 7], [8, 9], [10, 11], [12, 13])
    counts = []

    def schedule(num_tokens, num_phrases):
        counts.append(num_tokens)
        return num_phrases

    run = PhraseGenerationState(CountedTables(), [phrases, phrases], schedule=schedule)
    run.prompt_length = 2
    ids = torch.tensor([[1, 2, VOCAB, 3], [1, 2, 3, VOCAB + 1], [1, 2, 3, 4], [1, 2, 4, 5]])  # two rows, or beams, each
    run.table_at(ids)
    assert counts == [0, 0, 4, 2]
    run.table_at(ids[:, :3])  # a beam of fewer tokens takes no phrase back
    assert counts[-2:] == [4, 2]


def test_a_run_without_a_schedule_has_one_table():
    make_table = CountedTables()
    run = PhraseGenerationState(make_table, random_vocabulary(10))
    assert run.table_at(torch.ones(1, 3)) is run.table_at(torch.ones(1, 30))
    assert len(make_table.counts) == 1
    assert run.vocab_size == VOCAB


@pytest.mark.parametrize("count", [11, -1])
def test_a_schedule_must_give_a_number_of_phrases(count):
    with pytest.raises(ValueError, match=rf"\[0, 10\], got {count} after 0 tokens"):
        PhraseGenerationState(CountedTables(), random_vocabulary(10), schedule=lambda num_tokens, num_phrases: count)


def test_a_table_has_all_phrases_and_so_no_schedule():
    table = make_phrase_model().phrase_table(random_vocabulary(10))
    with pytest.raises(ValueError, match="step by step"):
        PhraseGenerationState(CountedTables(), table, schedule=PhraseSchedule())
