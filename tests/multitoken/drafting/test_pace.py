"""A measured pace finds the way that pays, and costs little where none does."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_targets.multitoken.drafting.drafts import DraftSettings
from hf_targets.multitoken.drafting.pace import MeasuredPace, Outcome

MOST = DraftSettings(3, 3, measured=True)
PLAIN, CHAIN = DraftSettings(0, 1, measured=True), DraftSettings(3, 1, measured=True)


def decode(pace: MeasuredPace, seconds: dict, tokens: dict, passes: int, rows: int = 1):
    """Take passes of given seconds and tokens by their settings; return the settings, all seconds and all tokens."""
    taken = []
    for _ in range(passes):
        way = pace.choose(rows)
        pace.record(rows, Outcome(way, seconds[way], tokens[way]))
        taken.append(way)
    return taken, sum(seconds[way] for way in taken), sum(tokens[way] for way in taken)


@settings(max_examples=20, deadline=None)
@given(chain=st.tuples(st.floats(0.5, 4), st.floats(1, 4)), tree=st.tuples(st.floats(0.5, 4), st.floats(1, 4)))
def test_nearly_all_time_goes_into_the_best_way(chain, tree):
    seconds = {PLAIN: 1.0, CHAIN: chain[0], MOST: tree[0]}
    tokens = {PLAIN: 1.0, CHAIN: chain[1], MOST: tree[1]}
    pace = MeasuredPace(MOST)
    _, took, brought = decode(pace, seconds, tokens, 1500)
    rates = {way: tokens[way] / seconds[way] for way in seconds}
    assume(abs(rates[CHAIN] - 1) > 1e-9)
    if rates[CHAIN] < 1:
        del rates[MOST]  # trees are not tried where chains do not pay
    assert brought / took >= 0.93 * max(rates.values())


@settings(max_examples=50, deadline=None)
@given(
    chain=st.tuples(st.floats(0.2, 9), st.lists(st.integers(1, 4), min_size=1, max_size=9)),
    tree=st.tuples(st.floats(0.2, 9), st.floats(1, 4)),
    passes=st.integers(20, 600),
)
def test_no_text_takes_much_longer_than_without_drafts(chain, tree, passes):
    pace, brought = MeasuredPace(MOST), cycle(chain[1])
    time = written = slowest = 0.0
    for _ in range(passes):
        way = pace.choose(1)
        took, tokens = {PLAIN: (1.0, 1), CHAIN: (chain[0], next(brought)), MOST: tree}[way]
        pace.record(1, Outcome(way, took, tokens))
        time, written, slowest = time + took, written + tokens, max(slowest, took)
    # the share, the passes beyond it, one not timed of each kind, one that began within bounds, and luck in few passes
    assert time <= 1.01 * written + 2 + 3 * slowest + 5


def texts_of(pace: MeasuredPace, brought: Iterable[int], seconds: float = 1.3, passes: int = 60) -> list[int]:
    """Decode a text for each number of tokens that a chain brings; return the passes with chains of each text."""
    chains = []
    for tokens in brought:
        if pace.begins_plain(1):
            pace.record_plain(1, passes, 1.0)
            chains.append(0)
        else:
            taken, *_ = decode(pace, {PLAIN: 1.0, CHAIN: seconds}, {PLAIN: 1, CHAIN: tokens}, passes)
            chains.append(taken.count(CHAIN))
    return chains


def test_where_drafts_do_not_pay_most_texts_begin_plain_and_tries_take_their_share():
    chains = texts_of(MeasuredPace(DraftSettings(3, 1, measured=True)), [1] * 200, seconds=2.0)
    assert 0 < chains[0] <= 4
    assert chains.count(0) > 100
    assert sum(chains) == pytest.approx(0.01 * 200 * 60, rel=0.1)  # each loses one pass


def test_a_hard_text_does_not_end_drafts_for_long():
    chains = texts_of(MeasuredPace(DraftSettings(3, 1, measured=True)), [1, 1, *[4] * 6])
    assert chains[-1] > 50


@settings(max_examples=40, deadline=None)
@given(length=st.integers(4, 40), brought=st.lists(st.integers(1, 2), min_size=2, max_size=6))
def test_drafts_that_pay_are_found_whatever_the_length_of_texts(length, brought):
    pace, first = MeasuredPace(DraftSettings(3, 1, measured=True)), iter(brought)
    taken = []
    for _ in range(3000 // length):
        taken.append(not pace.begins_plain(1))
        if not taken[-1]:
            pace.record_plain(1, length, 1.0)
            continue
        for _ in range(length):
            way = pace.choose(1)
            tokens = 1 if way == PLAIN else next(first, 4)  # a few chains bring little, all later ones much
            pace.record(1, Outcome(way, 1.0 if way == PLAIN else 1.35, tokens))
    assert all(taken[-5:])


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
    pace.record(1, Outcome(CHAIN, 100.0, 2))
    assert pace.choose(1) == CHAIN


def test_threads_may_share_a_pace():
    pace, costs = MeasuredPace(MOST), ({PLAIN: 1.0, CHAIN: 1.1, MOST: 1.5}, {PLAIN: 1, CHAIN: 2, MOST: 2})
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(decode, pace, *costs, 500) for _ in range(8)]
        assert all(one.result()[0].count(CHAIN) > 250 for one in done)


def chains(pace: MeasuredPace, passes: int, *, seconds: float, tokens: float, confidences=(), accepted=()):
    """Take passes without drafts, of a second, and then so many in chains."""
    for _ in range(4):
        pace.record(1, Outcome(PLAIN, 1.0, 1))
    for _ in range(1 + passes):  # the first is not timed
        pace.record(1, Outcome(CHAIN, seconds, tokens, confidences=confidences, accepted=accepted))


def test_a_chain_is_continued_while_a_token_is_worth_its_time():
    pace, half = MeasuredPace(DraftSettings(3, 1, measured=True)), (0.9, 0.7, 0.5)
    assert pace.least_confidences(1) == [0.0] * 3
    chains(pace, 20, seconds=1.6, tokens=3.2, confidences=half, accepted=half)
    # half of the .6 is counted as the cost of drafting at all: a token takes .1, in which this pace brings .2 tokens
    assert pace.least_confidences(1) == pytest.approx([0.2] * 3)


@given(factors=st.tuples(*[st.floats(0.2, 5)] * 3))
def test_heads_that_are_too_sure_or_not_sure_enough_are_corrected(factors):
    pace, told = MeasuredPace(DraftSettings(3, 1, measured=True)), (0.2, 0.15, 0.1)
    accepted = [factor * confidence for factor, confidence in zip(factors, told, strict=True)]
    chains(pace, 20, seconds=1.6, tokens=3.2, confidences=told, accepted=accepted)
    assert pace.least_confidences(1) == pytest.approx([0.2 / factor for factor in factors])


def test_chains_that_were_cut_for_long_are_drafted_whole_again():
    pace = MeasuredPace(DraftSettings(3, 1, measured=True))
    chains(pace, 20, seconds=1.6, tokens=3.2, confidences=(0.9, 0.5, 0.1), accepted=(0.9, 0.5, 0.0))
    assert pace.least_confidences(1)[2] > 1
    chains(pace, 24, seconds=1.4, tokens=2.4, confidences=(0.9, 0.5), accepted=(0.9, 0.5))
    assert pace.least_confidences(1) == [0.0] * 3


def test_a_tree_tells_what_its_chain_would_have_brought():
    costs = {PLAIN: 1.0, CHAIN: 1.2, MOST: 1.3}
    pace = MeasuredPace(MOST)
    decode(pace, costs, {PLAIN: 1, CHAIN: 2, MOST: 2}, 40)
    for _ in range(24):  # an easier part of the text
        pace.record(1, Outcome(MOST, 1.3, 4, as_chain=4))
    taken = decode(pace, costs, {PLAIN: 1, CHAIN: 4, MOST: 4}, 3)[0]
    assert CHAIN in taken and taken.count(CHAIN) >= taken.count(MOST)
