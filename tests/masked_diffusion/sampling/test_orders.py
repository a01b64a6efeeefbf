"""The samplers that choose which tokens come first: first hitting, confidence, entropy bounds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.masked_diffusion.sampling import ordered
from hf_targets.masked_diffusion.sampling.ordered import entropies, within_bound
from hf_targets.masked_diffusion.sampling.streaming import CanvasTrace
from tests.masked_diffusion.sampling.denoisers import MASK, VOCAB, Product, Reader, canvas_of, sample

RAGGED = [[MASK] * 6, [1, MASK, 2, MASK, 3, MASK], [0, 1, 2, 3, 4, MASK], [0, 1, 2, 3, 4, 5]]


def filled_at(denoiser, canvas, sampler, **options):
    """The number of the change at which each position was filled, -1 where it was given; and the output."""
    trace = CanvasTrace()
    output = sample(denoiser, canvas, sampler, streamer=trace, **options)
    changes = (trace.stacked() == MASK).sum(dim=0)
    return changes.masked_fill(~canvas.masked, -1), output


def test_first_hitting_evaluates_a_row_once_for_each_of_its_masked_tokens():
    denoiser = Reader(6)
    output = sample(denoiser, canvas_of(RAGGED), "first_hitting")
    assert output.num_row_evaluations == output.num_generated_tokens == 6 + 3 + 1
    assert output.num_evaluations == 6
    assert output.tokens_per_forward == 1
    assert all((where.sum(dim=1) == 1).all() for _, where, _, _ in denoiser.calls)


@settings(max_examples=10)
@given(at_once=st.integers(1, 8), seed=st.integers(0, 99))
def test_first_hitting_with_several_tokens_a_step_rounds_up(at_once, seed):
    denoiser = Reader(6)
    output = sample(denoiser, canvas_of(RAGGED), "first_hitting", tokens_per_step=at_once, seed=seed)
    assert output.num_row_evaluations == sum(math.ceil(count / at_once) for count in (6, 3, 1))
    sizes = [where.sum(dim=1) for _, where, _, _ in denoiser.calls]
    assert all((size <= at_once).all() for size in sizes)


def test_first_hitting_unmasks_positions_in_every_order_as_often():
    canvas = canvas_of([[MASK, MASK, MASK, 0]] * 6000)
    filled, _ = filled_at(Product(4), canvas, "first_hitting")
    _, counts = filled.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000).abs() < 4 * 1000**0.5).all()


def test_the_surest_tokens_come_first():
    denoiser = Product(6, scale=2.0)
    canvas = canvas_of([[MASK] * 6, [MASK, 1, MASK, 2, MASK, 3]])
    filled, output = filled_at(denoiser, canvas, "confidence", temperature=0)
    surest = denoiser.probabilities().amax(dim=1)
    for row in range(2):
        positions = canvas.masked[row].nonzero().flatten()
        by_time, by_confidence = filled[row, positions].argsort(), surest[positions].argsort(descending=True)
        assert torch.equal(by_time, by_confidence)
    assert output.num_evaluations == 6  # a token a step
    assert output.num_row_evaluations == 6 + 3


@given(num_steps=st.integers(1, 9))
def test_confidence_shares_a_rows_tokens_evenly_among_the_steps(num_steps):
    canvas = canvas_of(RAGGED)
    filled, output = filled_at(Reader(6), canvas, "confidence", num_steps=num_steps)
    for row, count in enumerate(canvas.masked.sum(dim=1).tolist()):
        sizes = torch.bincount(filled[row][filled[row] >= 0]).tolist()
        assert sum(sizes) == count
        expected = sorted(count // num_steps + (step < count % num_steps) for step in range(num_steps))
        assert sorted(size for size in sizes if size) == [size for size in expected if size]
    assert output.num_evaluations == min(num_steps, 6)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=8), st.floats(0, 8) | st.just(math.inf))
def test_the_bound_chooses_the_longest_prefix_by_entropy_that_satisfies_it(values, bound):
    masked = torch.tensor([[False, *([True] * len(values))]])
    chosen = within_bound(masked, torch.tensor(values, dtype=torch.float64), bound)[0, 1:]
    ordered = sorted(values)
    fits = [n for n in range(1, len(values) + 1) if sum(ordered[: n - 1]) <= bound]
    assert int(chosen.sum()) == max(fits)
    assert sorted(torch.tensor(values, dtype=torch.float64)[chosen].tolist()) == ordered[: max(fits)]


def test_rows_have_a_bound_each():
    masked = torch.tensor([[True, True, True, False], [False, True, True, True], [False] * 4])
    entropy = torch.tensor([1.0, 0.2, 0.3, 2.0, 2.0, 2.0])
    chosen = within_bound(masked, entropy, 0.4)
    assert chosen.tolist() == [[False, True, True, False], [False, True, False, False], [False] * 4]


@pytest.mark.parametrize(("bound", "evaluations"), [(0.0, 10), (math.inf, 3)])
def test_bound_0_unmasks_one_token_at_a_time_and_inf_all_at_once(bound, evaluations):
    output = sample(Reader(6), canvas_of(RAGGED), "entropy_bound", entropy_bound=bound)
    assert output.num_row_evaluations == evaluations


def test_bound_0_unmasks_tokens_that_are_certain_together_with_one_that_is_not():
    denoiser = Product(4)
    denoiser.table[:3] = torch.nn.functional.one_hot(torch.tensor([1, 2, 3]), VOCAB) * 1e9
    filled, output = filled_at(denoiser, canvas_of([[MASK] * 4]), "entropy_bound", entropy_bound=0.0)
    assert output.num_evaluations == 1
    assert output.sequences[0, :3].tolist() == [1, 2, 3]
    assert filled.tolist() == [[0, 0, 0, 0]]


def test_entropy_is_that_of_the_network_whatever_the_temperature():
    denoiser = Product(6)
    outputs = [
        sample(denoiser, (1, 6), "entropy_bound", entropy_bound=2.0, temperature=temperature, top_p=top_p)
        for temperature, top_p in ((0, None), (1, None), (1, 0.1), (9, None))
    ]
    assert len({output.num_evaluations for output in outputs}) == 1
    assert outputs[0].num_evaluations > 1


def test_entropies_are_in_nats_and_of_zero_probability_without_harm(monkeypatch):
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0, 0.0]])
    expected = torch.tensor([math.log(4), 0.0, 1.5 * math.log(2)], dtype=torch.float64)
    torch.testing.assert_close(entropies(p.log()), expected)
    monkeypatch.setattr(ordered, "ENTRIES_AT_ONCE", 1)
    torch.testing.assert_close(entropies(p.log().clamp(min=-1e6)), expected)
