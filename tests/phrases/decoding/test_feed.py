"""Phrases that are added to a vocabulary while texts are written."""

import copy
import threading

import pytest
import torch

from hf_targets import PhraseFeed, PhraseSchedule
from tests.phrases.models import make_phrase_model, random_vocabulary
from tests.tiny_models import VOCAB, token_ids

GREEDY = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
WAYS = [
    GREEDY,
    {**GREEDY, "num_beams": 3},
    {**GREEDY, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
    {**GREEDY, "bad_words_ids": [[5, 6], [7]]},
    {**GREEDY, "num_beams": 2, "sequence_bias": [[[5], -2.0], [[6, 7], 3.0], [[VOCAB], 1.0]]},
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
    model.generate(token_ids(2, 5), phrases=PhraseFeed(phrases, max_per_step=10), **GREEDY)
    assert encoded == [10, 10, 5]


def test_another_thread_may_add_phrases_and_none_is_encoded_twice(encoded):
    model, phrases, others = copy.deepcopy(make_phrase_model()), random_vocabulary(10), random_vocabulary(60, 5)
    thread = threading.Thread(target=lambda: [phrases.add_token_ids([others.token_ids(id_)]) for id_ in others])
    thread.start()
    for _ in range(5):
        ids = model.generate(token_ids(2, 5), phrases=PhraseFeed(phrases), **GREEDY)
        assert all(phrases.expand(row) for row in ids.tolist())
    thread.join()
    late = model.generate(token_ids(2, 5), phrases=PhraseFeed(phrases), **GREEDY)
    assert torch.equal(late, model.generate(token_ids(2, 5), phrases=phrases, **GREEDY))
    assert sum(encoded) == len(phrases)


@pytest.mark.parametrize("how", [{"phrase_schedule": PhraseSchedule()}, {"phrase_index": []}])
def test_a_schedule_and_an_index_do_not_go_with_a_feed(how):
    with pytest.raises(ValueError, match="PhraseFeed"):
        make_phrase_model().generate(token_ids(2, 5), phrases=PhraseFeed(random_vocabulary(3)), **how, **GREEDY)
