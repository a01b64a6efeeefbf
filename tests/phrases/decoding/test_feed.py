"""Phrases that are encoded by a thread while texts are written."""

import copy
import subprocess
import sys
import threading
import time

import pytest
import torch

from hf_targets import PhraseFeed, PhraseSchedule
from hf_targets.phrases import embedding_cache
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.phrases.models import WORDS, make_phrase_model, random_vocabulary
from tests.programs import ROOT
from tests.tiny_models import VOCAB, token_ids

GREEDY = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
SCORED = {"output_scores": True, "return_dict_in_generate": True}
WAYS = [GREEDY, {**GREEDY, "num_beams": 3}, {**GREEDY, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2}]
every_way = pytest.mark.parametrize("how", WAYS, ids=["greedy", "beams", "processors"])


def fresh_model(**config):
    """Return a model that has encoded nothing."""
    return copy.deepcopy(make_phrase_model(**config))


@pytest.fixture
def slow_encoder(monkeypatch):
    """An encoder that begins to encode when the event is set, and then goes on."""
    may_begin, encode = threading.Event(), embedding_cache.encode

    def waiting(encoder, keys):
        assert may_begin.wait(20)
        return encode(encoder, keys)

    monkeypatch.setattr(embedding_cache, "encode", waiting)
    yield may_begin
    may_begin.set()


@every_way
@pytest.mark.parametrize("is_tied", [True, False])
def test_once_all_is_encoded_texts_are_those_of_the_vocabulary(is_tied, how):
    model, phrases = fresh_model(tie_phrase_embeddings=is_tied), random_vocabulary(30)
    phrases.remove([VOCAB + 3])
    with PhraseFeed(model, phrases) as feed:
        assert feed.wait(20)
        found = model.generate(token_ids(2, 5), phrases=feed, **how)
    assert torch.equal(found, model.generate(token_ids(2, 5), phrases=phrases, **how))
    assert (found >= VOCAB).any()


@every_way
def test_without_a_phrase_ready_texts_are_those_of_the_base_model(slow_encoder, how):
    model, phrases = fresh_model(), random_vocabulary(30)
    with PhraseFeed(model, phrases) as feed:
        found = model.generate(token_ids(2, 5), phrases=feed, **how)
        assert feed.num_ready == 0
        slow_encoder.set()
    assert torch.equal(found, model.generate(token_ids(2, 5), **how))


def waits_at_each_step(feed):
    """Let a feed encode at each step what the step wants."""
    table = feed.table

    def waiting_table(num_tokens):
        table(num_tokens)
        assert feed.wait(20)
        return table(num_tokens)

    feed.table = waiting_table


def test_a_feed_that_waits_at_each_step_is_the_schedule():
    model, phrases = fresh_model(), random_vocabulary(40)
    schedule = PhraseSchedule(initial=0.1, added=0.1, every=3)
    with PhraseFeed(model, phrases, schedule=schedule) as feed:
        waits_at_each_step(feed)
        found = model.generate(token_ids(2, 5), phrases=feed, **GREEDY)
    expected = model.generate(token_ids(2, 5), phrases=phrases, phrase_schedule=schedule, **GREEDY)
    assert torch.equal(found, expected)
    assert not torch.equal(found, model.generate(token_ids(2, 5), phrases=phrases, **GREEDY))


@pytest.mark.parametrize(
    "how", [{"bad_words_ids": [[5, 6], [7]]}, {"sequence_bias": [[[5], -2.0], [[6, 7], 3.0], [[VOCAB], 1.0]]}]
)
@pytest.mark.parametrize("beams", [1, 2])
def test_biases_of_tokens_go_on_while_phrases_arrive(how, beams):
    model, phrases, others, widths = fresh_model(), random_vocabulary(5), random_vocabulary(40, seed=2), set()
    more = map(others.token_ids, others)
    with PhraseFeed(model, phrases) as feed:
        table = feed.table

        def growing_table(num_tokens):
            phrases.add_token_ids([next(more)])
            table(num_tokens)
            assert feed.wait(20)
            widths.add(feed.num_ready)
            return table(num_tokens)

        feed.table = growing_table
        found = model.generate(token_ids(2, 5), phrases=feed, **{**GREEDY, "num_beams": beams, **how})
    assert found.shape == (2, 17) and len(widths) > 5


def test_only_phrases_that_have_arrived_are_encoded(encoded):
    model, phrases = fresh_model(), random_vocabulary(40)
    with PhraseFeed(model, phrases, schedule=PhraseSchedule(initial=0.5)) as feed:
        assert feed.wait(20)
        assert (feed.num_ready, sum(encoded)) == (20, 20)


def test_phrases_added_by_another_thread_join_and_none_is_encoded_twice(encoded):
    model, phrases, others = fresh_model(), random_vocabulary(10), random_vocabulary(60, seed=5)
    with PhraseFeed(model, phrases) as feed:
        feed.wait(20)

        def add():
            for id_ in list(others):
                phrases.add_token_ids([others.token_ids(id_)])

        adding = threading.Thread(target=add)
        adding.start()
        for _ in range(5):
            ids = model.generate(token_ids(2, 5), phrases=feed, **GREEDY, **SCORED)
            assert [phrases.expand(row) for row in ids.sequences.tolist()]
            scores = model.compute_transition_scores(ids.sequences, ids.scores)
            assert scores.isfinite().all()
        adding.join()
        assert feed.wait(20)
        assert feed.num_ready == phrases.num_ids
        late = model.generate(token_ids(2, 5), phrases=feed, **GREEDY)
    assert sum(encoded) == len(phrases)
    assert torch.equal(late, model.generate(token_ids(2, 5), phrases=phrases, **GREEDY))
    assert sum(encoded) == len(phrases)  # the model's cache has those of the feed


def test_tables_of_a_text_stay_as_they_are_while_memory_grows(monkeypatch):
    monkeypatch.setattr("hf_targets.phrases.decoding.feed._AT_ONCE", 7)
    model, phrases = fresh_model(), random_vocabulary(100)
    with PhraseFeed(model, phrases, schedule=lambda num_tokens, count: min(10 * num_tokens, count)) as feed:
        tables = []
        for num_tokens in range(1, 11):
            feed.table(num_tokens)
            assert feed.wait(20)
            tables.append(feed.table(num_tokens))
    whole = model.phrase_table(phrases)
    for number, table in enumerate(tables, start=1):
        assert table.num_ready == 10 * number
        torch.testing.assert_close(table.outputs, whole.output_rows[: 10 * number])


@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_a_changed_encoder_encodes_again(how):
    model, phrases = fresh_model(), random_vocabulary(30)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast")
    with PhraseFeed(model, phrases) as feed:
        feed.wait(20)
        if how == "weights":
            with torch.no_grad():
                for parameter in model.phrase_encoder.parameters():
                    parameter.mul_(0.5)
        with autocast, torch.no_grad():
            assert feed.wait(20)
            found = feed.begin(model).outputs
            expected = model.phrase_table(phrases).output_rows
            assert torch.equal(found.to(expected.dtype), expected)
            fed = model.generate(token_ids(2, 5), phrases=feed, **GREEDY)
            assert torch.equal(fed, model.generate(token_ids(2, 5), phrases=phrases, **GREEDY))


def test_what_is_encoded_while_the_encoder_changes_does_not_join(slow_encoder):
    model, phrases = fresh_model(), random_vocabulary(30)
    parameter = next(model.phrase_encoder.parameters())
    with PhraseFeed(model, phrases) as feed:
        time.sleep(0.05)  # the thread has begun to encode
        with torch.no_grad():
            parameter.mul_(0.5)
        slow_encoder.set()
        for _ in range(100):
            feed.table(3)
            time.sleep(0.002)
        assert feed.num_ready == 0
        assert feed.wait(20)
        assert torch.equal(feed.begin(model).outputs, model.phrase_table(phrases).output_rows)


def test_many_phrases_added_at_once_all_have_their_embeddings():
    model, phrases, others = fresh_model(), random_vocabulary(10), random_vocabulary(40_000, seed=5)
    added = [others.token_ids(id_) for id_ in others]
    with PhraseFeed(model, phrases) as feed:
        adding = threading.Thread(target=phrases.add_token_ids, args=[added])
        adding.start()
        while adding.is_alive():
            feed.table(0)
        adding.join()
        assert feed.wait(60)
        assert feed.num_ready == phrases.num_ids
        assert (feed.begin(model).outputs != 0).any(dim=1).all()


def test_an_error_of_the_thread_is_told_and_no_text_is_lost(monkeypatch):
    model, phrases = fresh_model(), random_vocabulary(30)

    def broken(*given):
        raise MemoryError("no room")

    monkeypatch.setattr("hf_targets.phrases.decoding.feed._with_rows", broken)
    with PhraseFeed(model, phrases) as feed:
        with pytest.raises(ValueError, match="cannot be encoded: no room"):
            feed.wait(20)
        with pytest.raises(ValueError, match="cannot be encoded: no room"):
            model.generate(token_ids(2, 5), phrases=feed, **GREEDY)
        assert feed.table(5).num_ready == 0  # of a text that is being written


def test_a_phrase_too_long_is_told_until_it_is_removed():
    model, phrases = fresh_model(family="gpt2"), random_vocabulary(5)
    model.phrase_encoder.max_tokens = 6
    with PhraseFeed(model, phrases) as feed:
        assert feed.wait(20)
        [long] = phrases.add_token_ids([[3, 4, 5, 6, 7, 8, 9]])
        with pytest.raises(ValueError, match=f"got 7 in phrase {long}; remove it"):
            feed.wait(20)
        assert feed.num_ready == 5
        phrases.remove([long])
        assert feed.wait(20)
        assert feed.begin(model).num_ready == 6


def test_other_phrases_may_be_removed_while_a_text_is_written():
    model, phrases = fresh_model(), random_vocabulary(30)
    with PhraseFeed(model, phrases, schedule=lambda num_tokens, count: 20) as feed:
        feed.wait(20)
        table, left = feed.table, list(range(VOCAB + 20, VOCAB + 30))

        def removing_table(num_tokens):
            found = table(num_tokens)
            if left:
                phrases.remove([left.pop()])
            return found

        feed.table = removing_table
        found = model.generate(token_ids(2, 5), phrases=feed, **GREEDY)
        assert len(left) < 10
    few = model.phrase_table(phrases, [20])
    assert torch.equal(found, model.generate(token_ids(2, 5), phrases=few, **GREEDY))


def test_a_model_takes_its_own_feed_in_evaluation_mode():
    model, other = fresh_model(), fresh_model(family="gpt2")
    with PhraseFeed(model, random_vocabulary(3)) as feed:
        with pytest.raises(ValueError, match="this is another; make a feed of this one"):
            other.generate(token_ids(2, 5), phrases=feed, **GREEDY)
        model.train()
        for use in (feed.wait, lambda: model.generate(token_ids(2, 5), phrases=feed, **GREEDY)):
            with pytest.raises(ValueError, match=r"call model\.eval"):
                use()


def test_a_feed_that_nobody_has_ends_its_thread():
    before = threading.active_count()
    feed = PhraseFeed(fresh_model(), random_vocabulary(30))
    feed.wait(20)
    thread = feed._thread
    del feed
    thread.join(20)
    assert threading.active_count() == before


def test_a_program_with_an_open_feed_ends():
    program = """
from hf_targets import PhraseFeed
from tests.phrases.models import make_phrase_model, random_vocabulary
feed = PhraseFeed(make_phrase_model(), random_vocabulary(20_000))
print(feed.num_ready < 20_000)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_closed_feed_has_no_thread_and_is_refused():
    model, phrases = fresh_model(), random_vocabulary(30)
    before = threading.active_count()
    with PhraseFeed(model, phrases) as feed:
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="the feed is closed; make another"):
        model.generate(token_ids(2, 5), phrases=feed, **GREEDY)


def test_no_step_waits_for_the_encoder(slow_encoder):
    model, phrases = fresh_model(), random_vocabulary(30)
    with PhraseFeed(model, phrases) as feed:
        begin = time.monotonic()
        assert not feed.wait(0.01)
        feed.table(5)
        assert time.monotonic() - begin < 10
        slow_encoder.set()
        assert feed.wait(20)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"phrase_schedule": PhraseSchedule()}, "give the schedule to PhraseFeed"),
        ({"phrase_index": []}, "leave out phrase_schedule and phrase_index"),
    ],
)
def test_what_does_not_go_with_a_feed_is_refused(how, message):
    model, phrases = fresh_model(), random_vocabulary(30)
    with PhraseFeed(model, phrases) as feed, pytest.raises(ValueError, match=message):
        model.generate(token_ids(2, 5), phrases=feed, **how, **GREEDY)


def test_a_feed_takes_a_model_in_evaluation_mode_and_its_own_phrases():
    model = fresh_model().train()
    with pytest.raises(ValueError, match=r"call model\.eval"):
        PhraseFeed(model, random_vocabulary(3))
    with pytest.raises(ValueError, match="one vocabulary for all rows of a batch, got a list"):
        PhraseFeed(fresh_model(), [random_vocabulary(3)])
    with pytest.raises(ValueError, match="phrase ids must begin at"):
        PhraseFeed(fresh_model(), PhraseVocabulary(WORDS, vocab_size=VOCAB + 1))
    with pytest.raises(ValueError, match=r"such as PhraseSchedule\(\), got 0\.7"):
        PhraseFeed(fresh_model(), random_vocabulary(3), schedule=0.7)
    with pytest.raises(ValueError, match="in \\[0, 3\\], got 4"):
        PhraseFeed(fresh_model(), random_vocabulary(3), schedule=lambda num_tokens, count: 4)
