"""`AutoDrafts` measures what drafts cost, drafts what pays, and loses little where nothing does."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hf_targets.multitoken.drafting.auto import CHEAP, MOST_TRUST, SHARE, AutoDrafts

K = 3
SIZES = {"lookup": K, "heads": K}


def make_auto(**costs: float) -> AutoDrafts:
    """Return an automatic choice that has measured these costs; other kinds have none to draft."""
    auto = AutoDrafts({name: K if name in costs else 0 for name in SIZES})
    auto.clock = lambda: 0.0
    for name, cost in costs.items():
        auto.kinds[name].cost = cost
    return auto


@given(plain=st.floats(0.1, 9), cost=st.floats(0, 9), lengths=st.lists(st.integers(1, K), min_size=20, max_size=20))
def test_the_cost_of_each_kind_is_measured_beside_passes_without_drafts(plain, cost, lengths):
    now = [0.0]
    auto, kinds = AutoDrafts(SIZES), []
    auto.clock = lambda: now[0]
    for number, length in enumerate(lengths):
        kinds.append(auto.choose(found=K * (number > 11)))
        length *= kinds[-1] != "plain"
        now[0] += plain * (1 + cost * (3 + length) / (3 + K) * (length > 0))
        auto.record(kinds[-1], length, 3.0, whole=number not in (0, 5))
    trials = ["plain", "heads"] * 5 + ["plain", "lookup"] * 4
    assert kinds == ["plain"] * 2 + trials  # the times of two passes did not count
    assert [auto.kinds[name].cost for name in SIZES] == pytest.approx([cost] * 2, abs=1e-6)


@given(
    paces=st.lists(st.tuples(st.floats(0.5, 4), st.integers(0, 9)), max_size=4),
    cost=st.floats(0, 0.8),
    kind=st.sampled_from(list(SIZES)),
)
def test_drafts_that_pay_are_taken_whatever_slow_moments_the_machine_had(paces, cost, kind):
    now, auto = [0.0], AutoDrafts({kind: K})
    auto.clock = lambda: now[0]
    passes = [pace for pace, count in paces for _ in range(count)] + [1.0] * 3000
    for pace in passes:
        chosen = auto.choose(found=K)
        now[0] += pace * (1 if chosen == "plain" else 1 + cost)
        auto.record(chosen, K * (chosen == kind), float(chosen == kind), whole=True)
    assert auto.choose(found=K) == kind


@given(
    costs=st.tuples(st.floats(0, K), st.floats(0, K)),
    rights=st.lists(st.tuples(st.booleans(), st.integers(0, K), st.integers(0, K)), min_size=1, max_size=300),
)
@example(costs=(1.0, 1.0), rights=[(False, 0, 3)] * 3 + [(False, 0, 0)] * 9)
def test_each_kind_loses_at_most_two_passes_and_a_share_of_all(costs, rights):
    auto, lost = make_auto(lookup=costs[0], heads=costs[1]), dict.fromkeys(SIZES, 0.0)
    for found, *right in rights:
        kind = auto.choose(found=K * found)
        gained = 0 if kind == "plain" else right[list(SIZES).index(kind)]
        auto.record(kind, K * (kind != "plain"), gained, whole=True)
        if kind != "plain":
            lost[kind] += auto.kinds[kind].cost - gained
        lost = {name: max(passes - SHARE, 0.0) for name, passes in lost.items()}  # since any pass, beyond its share
        assert max(lost.values()) <= max(MOST_TRUST, *costs) + 1e-9


@given(cost=st.floats(0, 0.99), kind=st.sampled_from(list(SIZES)), passes=st.integers(1, 99))
def test_drafts_that_pay_go_on_and_come_back_after_a_while(cost, kind, passes):
    auto = make_auto(**{kind: cost})
    for right in [1] * passes + [0] * 300 + [1] * 300:
        chosen = auto.choose(found=K)
        auto.record(chosen, K * (chosen == kind), right * (chosen == kind), whole=True)
    assert auto.choose(found=K) == kind


def test_a_match_must_bring_what_the_heads_would_have():
    for brought, kind in ((0.6, "heads"), (1.4, "lookup")):
        auto = make_auto(lookup=0.2, heads=0.2)
        for _ in range(40):
            auto.record("heads", K, 1.0, whole=True)
        for _ in range(20):
            chosen = auto.choose(found=K)
            auto.record(chosen, K, {"heads": 1.0, "lookup": brought}[chosen], whole=True)
        assert auto.choose(found=K) == kind
    for gain, trust, brought, kind in ((2.0, 0.0, 0.6, "lookup"), (-1.0, MOST_TRUST, 0.0, "heads")):
        auto = make_auto(lookup=0.2, heads=0.2)  # heads that are left out, or lose, ask for nothing
        auto.kinds["heads"].gain, auto.kinds["heads"].trust = gain, trust
        for _ in range(20):
            auto.record("lookup", K, brought, whole=True)
        assert auto.choose(found=K) == kind


@given(costs=st.tuples(st.floats(0, 1), st.floats(0, 2)), gains=st.tuples(st.floats(0, K), st.floats(0, K)))
def test_of_chain_and_tree_the_one_that_gains_more_is_found_where_chains_are_cheap(costs, gains):
    auto = AutoDrafts({"lookup": 0, "heads": K, "tree": K})
    auto.clock, nets = lambda: 0.0, {"plain": 0.0}
    for name, cost, gain in zip(("heads", "tree"), costs, gains, strict=True):
        auto.kinds[name].cost, nets[name] = cost, gain - cost
    chosen = []
    for _ in range(400):
        chosen.append(auto.choose(found=0))
        gained = nets[chosen[-1]] + (0 if chosen[-1] == "plain" else auto.kinds[chosen[-1]].cost)
        auto.record(chosen[-1], K * (chosen[-1] != "plain"), gained, whole=True)
    if costs[0] > CHEAP:
        assert "tree" not in chosen
    elif max(nets.values()) > 0.01:
        assert nets[max(chosen[-9:], key=chosen[-9:].count)] > max(nets.values()) - 0.01


@pytest.mark.parametrize("length", [1, K])
def test_a_draft_costs_as_three_tokens_more_than_it_has(length):
    auto = make_auto(heads=0.6)
    auto.record("heads", length, 0.0, whole=True)
    assert auto.kinds["heads"].trust == pytest.approx(MOST_TRUST - 0.1 * (3 + length) + SHARE)


def test_drafts_that_cost_more_than_two_passes_are_not_begun():
    assert make_auto(heads=MOST_TRUST + 0.01).choose(found=0) == "plain"
    assert make_auto(heads=MOST_TRUST).choose(found=0) == "heads"
    assert [make_auto(lookup=MOST_TRUST * 1.5).choose(found=found) for found in (1, K)] == ["lookup", "plain"]
