"""Ancestral sampling, evaluated at every step or only where something is unmasked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.masked_diffusion.sampling.denoisers import MASK, Reader, canvas_of, sample


@given(
    timed=st.booleans(),
    num_steps=st.integers(1, 30),
    seed=st.integers(0, 999),
    temperature=st.sampled_from([0, 0.7, 1]),
)
def test_cached_gives_the_tokens_of_ancestral(timed, num_steps, seed, temperature):
    canvas = canvas_of([[MASK] * 6, [1, MASK, MASK, 2, MASK, 3], [1, 2, 3, 4, 5, 0]], max_length=8)
    outputs = [
        sample(Reader(8, timed=timed), canvas, sampler, seed=seed, num_steps=num_steps, temperature=temperature)
        for sampler in ("ancestral", "cached")
    ]
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert outputs[1].num_row_evaluations <= outputs[0].num_row_evaluations


def test_cached_evaluates_exactly_the_rows_that_it_unmasks():
    denoiser = Reader(8)
    sample(denoiser, (16, 8), "cached", num_steps=40)
    assert all(where.any(dim=1).all() for _, where, _, _ in denoiser.calls)


def test_ancestral_evaluates_every_row_at_every_step_until_it_is_full():
    denoiser = Reader(3)
    output = sample(denoiser, (1, 3), "ancestral", num_steps=50)
    assert any(not where.any() for _, where, _, _ in denoiser.calls)  # asks also where no position is unmasked
    times = torch.stack([t[0] for *_, t in denoiser.calls]).double()
    torch.testing.assert_close(times, 1 - torch.arange(len(times)).double() / 50, rtol=0, atol=1e-6)
    assert output.num_evaluations == len(times) <= 50


@pytest.mark.parametrize("sampler", ["ancestral", "cached"])
def test_places_are_asked_for_only_when_they_are_unmasked(sampler):
    denoiser = Reader(8)
    sample(denoiser, (4, 8), sampler, num_steps=20)
    assert sum(int(where.sum()) for _, where, _, _ in denoiser.calls) == 4 * 8


@pytest.mark.parametrize("sampler", ["ancestral", "cached"])
def test_without_num_steps_there_are_as_many_as_the_most_masked_tokens_of_a_row(sampler):
    canvas = canvas_of([[MASK] * 5 + [0], [1, 2, 3, 4, 5, MASK]])
    given_steps, default = (
        sample(Reader(6), canvas, sampler, seed=5, **steps).sequences for steps in ({"num_steps": 5}, {})
    )
    assert torch.equal(given_steps, default)
