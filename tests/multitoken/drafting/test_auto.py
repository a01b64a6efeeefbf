"""`AutoLength` measures once, drafts where it pays, and loses little where it does not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.multitoken.drafting.auto import MOST_LOST, AutoLength

K = 3


def make_auto(cost: float | None = None) -> AutoLength:
    return AutoLength(K, {} if cost is None else {"here": cost}, "here", lambda: 0.0)


def accepted(number: int) -> list[float]:
    """What a pass accepted of a row, by length, where `number` drafted tokens were right."""
    return [float(n < number) for n in range(K)]


@settings(deadline=None)
@given(plain=st.floats(0.1, 9), chain=st.floats(0.1, 9))
def test_the_cost_of_a_chain_is_measured_once_and_kept(plain, chain):
    now, costs = [0.0], {}
    auto = AutoLength(K, costs, "here", lambda: now[0])
    lengths = []
    while "here" not in costs:
        lengths.append(auto.next_length())
        now[0] += chain if lengths[-1] else plain
        auto.record(lengths[-1], 0.0, [0.5] * lengths[-1], [0.0] * lengths[-1], whole=len(lengths) != 2)
    assert costs["here"] == pytest.approx(max(chain / plain - 1, 0), abs=1e-6)
    assert lengths == [0] * 5 + [K] * 4  # one of the passes did not count
    now[0] += 100
    auto.record(K, K, [0.5] * K, [1.0] * K, whole=True)
    assert costs["here"] == pytest.approx(max(chain / plain - 1, 0), abs=1e-6)


def test_a_chain_goes_on_while_its_tokens_bring_more_than_they_cost():
    auto = make_auto(0.6)
    assert auto.least_confidences() == pytest.approx([0.6 / (2 * K)] * K)
    auto.record(K, 3.0, [0.8, 0.6, 0.4], accepted(3), whole=True)
    rate = (1 + 1 + 3) / (1 + 1 + 0.6)
    corrections = [1.8 / 2, 1.6 / 2, 1.4 / 2]
    assert auto.least_confidences() == pytest.approx([0.1 * rate * correction for correction in corrections])


@settings(deadline=None)
@given(cost=st.floats(0, K - 0.01), rights=st.lists(st.integers(0, K), min_size=1, max_size=300))
def test_no_call_loses_more_than_two_passes_and_the_one_that_tells(cost, rights):
    auto, balance = make_auto(cost), 0.0
    for right in rights:
        length = auto.next_length()
        if length:
            auto.record(length, right, [1.0] * length, accepted(right), whole=True)
            balance += right - cost
    assert balance >= -MOST_LOST - cost - 1e-9


@settings(deadline=None)
@given(cost=st.floats(0, 0.99), passes=st.integers(1, 99))
def test_drafts_that_pay_go_on(cost, passes):
    auto = make_auto(cost)
    for _ in range(passes):
        assert auto.next_length() == K
        auto.record(K, 1.0, [1.0] * K, accepted(1), whole=True)


def test_chains_that_cost_more_than_they_can_bring_are_not_begun():
    assert make_auto(K).stopped and make_auto(K).next_length() == 0
    assert not make_auto(K - 0.1).stopped
