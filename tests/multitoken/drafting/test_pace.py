"""A measured pace finds the way that pays, and costs little where none does."""

import pytest
from hypothesis import given, settings
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


@settings(max_examples=50, deadline=None)
@given(chain=st.tuples(st.floats(0.5, 4), st.floats(1, 4)), tree=st.tuples(st.floats(0.5, 4), st.floats(1, 4)))
def test_nearly_all_passes_are_taken_in_the_best_way(chain, tree):
    seconds = {PLAIN: 1.0, CHAIN: chain[0], MOST: tree[0]}
    tokens = {PLAIN: 1.0, CHAIN: chain[1], MOST: tree[1]}
    pace = MeasuredPace(MOST)
    taken, took, brought = decode(pace, seconds, tokens, 4096)
    rates = {way: tokens[way] / seconds[way] for way in seconds}
    if rates[CHAIN] < 0.8:
        del rates[MOST]  # trees are not tried where chains are hopeless
    assert brought / took >= 0.97 * max(rates.values())
    assert rates[max(set(taken), key=taken.count)] >= 0.97 * max(rates.values())


def test_where_drafts_do_not_pay_whole_texts_are_plain_but_for_a_try_now_and_then():
    pace = MeasuredPace(MOST)
    assert not pace.steps_aside(1)  # nothing is known yet
    decode(pace, {PLAIN: 1.0, CHAIN: 2.0}, {PLAIN: 1, CHAIN: 1}, 20)
    aside = [pace.steps_aside(1) for _ in range(160)]
    assert sum(aside) == 150
    assert pace.choose(1) == CHAIN  # the last of these texts tries one


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


def test_a_chain_is_continued_while_a_token_is_worth_its_time():
    pace = MeasuredPace(DraftSettings(3, 1, measured=True))
    assert pace.least_confidence(1) == 0.0
    decode(pace, {PLAIN: 1.0, CHAIN: 1.6}, {PLAIN: 1, CHAIN: 3.2}, 50)
    # a drafted token takes .2 of a plain pass, in which decoding at this pace brings .4 tokens
    assert pace.least_confidence(1) == pytest.approx(0.4)
