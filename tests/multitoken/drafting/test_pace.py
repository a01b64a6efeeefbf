"""A measured pace finds the way that pays, and costs little where none does."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_targets.multitoken.drafting.drafts import DraftSettings
from hf_targets.multitoken.drafting.pace import MeasuredPace

MOST = DraftSettings(3, 3, measured=True)
PLAIN, CHAIN = DraftSettings(0, 1, measured=True), DraftSettings(3, 1, measured=True)


def decode(pace: MeasuredPace, seconds: dict, tokens: dict, passes: int, rows: int = 1):
    """Take passes of given seconds and tokens by their settings; return the settings, all seconds and all tokens."""
    taken = []
    for _ in range(passes):
        way = pace.choose(rows)
        pace.record(rows, way, seconds[way], way.num_tokens, tokens[way])
        taken.append(way)
    return taken, sum(seconds[way] for way in taken), sum(tokens[way] for way in taken)


@settings(max_examples=20, deadline=None)
@given(chain=st.tuples(st.floats(0.5, 4), st.floats(1, 4)), tree=st.tuples(st.floats(0.5, 4), st.floats(1, 4)))
def test_nearly_all_passes_are_taken_in_the_best_way(chain, tree):
    seconds = {PLAIN: 1.0, CHAIN: chain[0], MOST: tree[0]}
    tokens = {PLAIN: 1.0, CHAIN: chain[1], MOST: tree[1]}
    pace = MeasuredPace(MOST)
    taken, took, brought = decode(pace, seconds, tokens, 1500)
    rates = {way: tokens[way] / seconds[way] for way in seconds}
    assume(abs(rates[CHAIN] - 1) > 1e-9)
    if rates[CHAIN] < 1:
        del rates[MOST]  # trees are not tried where chains do not pay
    assert brought / took >= 0.95 * max(rates.values())
    assert rates[max(set(taken), key=taken.count)] >= 0.9 * max(rates.values())  # others within a tenth keep hope


def test_where_drafts_do_not_pay_whole_texts_are_plain_but_for_one_in_sixteen():
    pace, costs = MeasuredPace(MOST), ({PLAIN: 1.0, CHAIN: 2.0}, {PLAIN: 1, CHAIN: 1})
    texts = [0 if pace.begins_plain(1) else decode(pace, *costs, 60)[0].count(CHAIN) for _ in range(160)]
    assert all(texts[:4])  # one text may be harder than others
    assert texts.count(0) == 160 - 4 - 9
    assert max(texts) <= 12


def test_a_hard_text_does_not_end_drafts_for_the_next():
    pace = MeasuredPace(DraftSettings(3, 1, measured=True))
    for brought in (1, 4, 1, 4, 4):
        assert not pace.begins_plain(1)
        taken, *_ = decode(pace, {PLAIN: 1.0, CHAIN: 1.3}, {PLAIN: 1, CHAIN: brought}, 60)
    assert taken[-20:] == [CHAIN] * 20


def test_what_begins_to_pay_is_found():
    pace = MeasuredPace(DraftSettings(3, 1, measured=True))
    decode(pace, {PLAIN: 1.0, CHAIN: 2.0}, {PLAIN: 1, CHAIN: 1.0}, 200)
    taken, *_ = decode(pace, {PLAIN: 1.0, CHAIN: 1.1}, {PLAIN: 1, CHAIN: 4.0}, 2000)
    assert taken[-1] == CHAIN


def test_numbers_of_rows_are_measured_apart():
    pace = MeasuredPace(DraftSettings(3, 1, measured=True))
    decode(pace, {PLAIN: 1.0, CHAIN: 1.1}, {PLAIN: 1, CHAIN: 2}, 20, rows=1)
    decode(pace, {PLAIN: 1.0, CHAIN: 3.0}, {PLAIN: 1, CHAIN: 2}, 20, rows=8)
    assert (pace.choose(1), pace.choose(8)) == (CHAIN, PLAIN)


def test_a_pause_of_the_machine_changes_nothing():
    pace = MeasuredPace(DraftSettings(3, 1, measured=True))
    decode(pace, {PLAIN: 1.0, CHAIN: 1.1}, {PLAIN: 1, CHAIN: 2}, 20)
    pace.record(1, CHAIN, 100.0, 3, 2)
    assert pace.choose(1) == CHAIN


def test_threads_may_share_a_pace():
    pace, costs = MeasuredPace(MOST), ({PLAIN: 1.0, CHAIN: 1.1, MOST: 1.5}, {PLAIN: 1, CHAIN: 2, MOST: 2})
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(decode, pace, *costs, 500) for _ in range(8)]
        assert all(one.result()[0].count(CHAIN) > 250 for one in done)


def test_a_chain_is_continued_while_a_token_is_worth_its_time():
    pace = MeasuredPace(DraftSettings(3, 1, measured=True))
    assert pace.least_confidence(1) == 0.0
    decode(pace, {PLAIN: 1.0, CHAIN: 1.6}, {PLAIN: 1, CHAIN: 3.2}, 20)
    # half of the .6 is counted as the cost of drafting at all: a token takes .1, in which this pace brings .2 tokens
    assert pace.least_confidence(1) == pytest.approx(0.2)
    pace.record(1, CHAIN, 1.3, 1, 3.2)
    # measured, a token takes (1.6 - 1.3) / 2
    assert pace.least_confidence(1) == pytest.approx(0.3)
