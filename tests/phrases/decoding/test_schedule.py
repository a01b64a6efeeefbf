"""Vocabularies that grow while a text is written, by a schedule or by additions."""

import copy
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets import PhraseFeed, PhraseSchedule
from hf_targets.phrases.generation import PhraseGenerationState
from tests.phrases.models import make_phrase_model, random_vocabulary, vocabulary_of
from tests.tiny_models import VOCAB, token_ids

SHARES = st.integers(0, 100).map(lambda share: share / 100)


@given(SHARES, SHARES, st.integers(1, 20), st.integers(0, 10_000))
def test_a_schedule_starts_with_its_share_and_only_grows_to_all(initial, added, every, num_phrases):
    schedule = PhraseSchedule(initial, added, every)
    counts = [schedule(num_tokens, num_phrases) for num_tokens in range(0, 101 * every, max(1, every // 2))]
    assert -1e-3 <= counts[0] - initial * num_phrases < 1
    assert counts == sorted(counts)
    assert counts[-1] <= num_phrases
    if initial + 100 * added >= 1:
        assert schedule(100 * every, num_phrases) == num_phrases


@given(SHARES, SHARES, st.integers(1, 20), st.integers(0, 60))
def test_a_share_is_added_every_so_many_tokens_and_rounded_up(initial, added, every, num_tokens):
    share = min(100, round(100 * initial) + round(100 * added) * (num_tokens // every))
    assert PhraseSchedule(initial, added, every)(num_tokens, 700) == -(-share * 700 // 100)


def test_a_run_counts_the_tokens_of_phrases_and_those_of_each_vocabulary_apart():
    phrases = vocabulary_of([5, 6, 7], [8, 9], [10, 11], [12, 13])
    counts = []

    def schedule(num_tokens, num_phrases):
        counts.append(num_tokens)
        return num_phrases

    run = PhraseGenerationState(make_phrase_model().phrase_table, [phrases, phrases], schedule=schedule)
    run.prompt_length = 2
    ids = torch.tensor([[1, 2, VOCAB, 3], [1, 2, 3, VOCAB + 1], [1, 2, 3, 4], [1, 2, 4, 5]])  # two rows, or beams, each
    table = run.table_at(ids)
    assert counts == [0, 0, 4, 2]
    assert run.table_at(ids[:, :3]) is table  # a beam of fewer tokens takes no phrase back, and no new table is made
    assert counts[-2:] == [4, 2]


def test_the_default_is_that_of_the_paper():
    schedule = PhraseSchedule()
    assert [schedule(num_tokens, 1000) for num_tokens in (0, 9, 10, 59, 60, 200)] == [700, 700, 750, 950, 1000, 1000]


@pytest.mark.parametrize("wrong", [{"initial": 1.1}, {"added": -0.1}, {"every": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PhraseSchedule(**wrong)


ENDLESS = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
WAYS = [
    ENDLESS,
    {**ENDLESS, "num_beams": 3},
    {**ENDLESS, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
    {**ENDLESS, "bad_words_ids": [[5, 6], [7]]},
    {**ENDLESS, "num_beams": 2, "sequence_bias": [[[5], -2.0], [[6, 7], 3.0], [[VOCAB], 1.0]]},
]


@pytest.mark.parametrize("how", WAYS)
def test_without_additions_texts_are_those_of_the_vocabulary(how):
    model, phrases = make_phrase_model(), random_vocabulary(30)
    phrases.remove([VOCAB + 3])
    found = model.generate(token_ids(2, 5), phrases=PhraseFeed(phrases), **how)
    assert torch.equal(found, model.generate(token_ids(2, 5), phrases=phrases, **how))
    assert (found >= VOCAB).any()


def adding(feed, others, how_many):
    """Let some phrases be added to a feed's vocabulary at each step."""
    added, schedule = map(others.token_ids, others), feed.schedule

    def adding_after(count):
        def counting(*given):
            counted = count(*given)
            feed.vocabulary.add_token_ids([next(added) for _ in range(how_many)])
            return counted

        return counting

    object.__setattr__(feed, "schedule", lambda: adding_after(schedule()))


@pytest.mark.parametrize("how", WAYS)
def test_phrases_that_are_added_join_at_the_next_step(how):
    model, phrases = make_phrase_model(), random_vocabulary(5)
    feed = PhraseFeed(phrases)
    adding(feed, random_vocabulary(150, seed=2), 10)
    fed = model.generate(token_ids(2, 5), phrases=feed, output_scores=True, return_dict_in_generate=True, **how)
    widths = [scores.shape[1] for scores in fed.scores]
    assert widths == sorted(widths) and widths[-1] - widths[0] > 10
    assert (fed.sequences >= VOCAB + 5).any()
    assert all(phrases.expand(row) for row in fed.sequences.tolist())
    indices = getattr(fed, "beam_indices", None)
    assert not model.compute_transition_scores(fed.sequences, fed.scores, indices).isnan().any()


def test_a_step_encodes_no_more_than_its_bound(encoded):
    model, phrases = copy.deepcopy(make_phrase_model()), random_vocabulary(25)
    model.generate(token_ids(2, 5), phrases=PhraseFeed(phrases, max_per_step=10), **ENDLESS)
    assert encoded == [10, 10, 5]


def test_another_thread_may_add_phrases_and_none_is_encoded_twice(encoded):
    model, phrases, others = copy.deepcopy(make_phrase_model()), random_vocabulary(10), random_vocabulary(60, 5)
    thread = threading.Thread(target=lambda: [phrases.add_token_ids([others.token_ids(id_)]) for id_ in others])
    thread.start()
    for _ in range(5):
        ids = model.generate(token_ids(2, 5), phrases=PhraseFeed(phrases), **ENDLESS)
        assert all(phrases.expand(row) for row in ids.tolist())
    thread.join()
    late = model.generate(token_ids(2, 5), phrases=PhraseFeed(phrases), **ENDLESS)
    assert torch.equal(late, model.generate(token_ids(2, 5), phrases=phrases, **ENDLESS))
    assert sum(encoded) == len(phrases)
