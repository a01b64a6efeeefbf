import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.maths.gaussian_noise import (
    ancestral_steps,
    cedi_steps,
    nearest_neighbour_deviation,
    signal_shares,
    spaced_steps,
)


def run_back(steps, clean, state, generator=None):
    """Run steps with a model that always predicts the clean embedding."""
    for step in steps:
        noise = torch.randn(state.shape, generator=generator, dtype=state.dtype) if step.std else 0.0
        state = step.of_prediction * clean + step.of_state * state + step.std * noise
    return state


def test_the_square_root_schedule_is_the_published_one():
    shares = signal_shares("sqrt", 2000)
    assert shares[0].item() == pytest.approx(0.98536, abs=5e-6)
    assert shares[999].item() == pytest.approx(0.2958, abs=5e-5)
    assert shares[-1].item() == pytest.approx(2e-7, abs=5e-9)


@pytest.mark.parametrize("name", ["sqrt", "linear", "cosine"])
def test_shares_fall_from_nearly_one_to_nearly_zero(name):
    shares = signal_shares(name, 200)
    assert shares.dtype == torch.float64 and len(shares) == 200
    assert 0.9 < shares[0] < 1 and 0 < shares[-1] < 1e-3
    assert (shares.diff() < 0).all()


@given(st.integers(2, 500), st.data())
def test_chosen_steps_are_spread_and_hold_the_first_and_the_last(total, data):
    count = data.draw(st.integers(2, total))
    chosen = spaced_steps(total, count)
    assert chosen[0] == 0 and chosen[-1] == total - 1 and len(set(chosen)) == count
    gaps = {second - first for first, second in itertools.pairwise(chosen)}
    assert max(gaps) - min(gaps) <= 1


def test_steps_are_chosen_as_the_published_program_adds_them_up():
    for count in (2, 15, 20, 25, 27, 29, 100):
        taken, current = [], 0.0
        for _ in range(count):
            taken.append(round(current))
            current += 1999 / (count - 1)
        assert spaced_steps(2000, count) == taken


def test_early_stopping_leaves_fifteen_evaluations_of_twenty():
    steps = ancestral_steps(signal_shares("sqrt", 2000), spaced_steps(2000, 20), num_skipped=5, time_scale=1.0)
    assert len(steps) == 15
    assert (steps[0].time, steps[-1].time) == (1999, 526)


@given(st.sampled_from(["sqrt", "linear", "cosine"]), st.integers(2, 30))
def test_a_step_back_is_the_posterior_of_the_two_gaussians(name, count):
    shares, chosen = signal_shares(name, 100), spaced_steps(100, count)
    steps = ancestral_steps(shares, chosen, num_skipped=1, time_scale=1.0)
    for step, now, before in zip(steps[::-1], chosen[1:], chosen, strict=False):
        a, b = shares[now].item(), shares[before].item()
        kept = a / b
        precision = 1 / (1 - b) + kept / (1 - kept)
        assert step.std**2 == pytest.approx(1 / precision, rel=1e-9)
        assert step.of_prediction == pytest.approx(math.sqrt(b) / (1 - b) / precision, rel=1e-9)
        assert step.of_state == pytest.approx(math.sqrt(kept) / (1 - kept) / precision, rel=1e-9)


@pytest.mark.parametrize("name", ["sqrt", "linear", "cosine"])
def test_a_model_that_knows_the_text_is_led_back_to_it(name):
    generator = torch.Generator().manual_seed(0)
    clean, noise = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    steps = ancestral_steps(signal_shares(name, 2000), spaced_steps(2000, 20), num_skipped=0, time_scale=0.5)
    assert steps[-1].std == 0
    torch.testing.assert_close(run_back(steps, clean, noise, generator), clean, rtol=1e-12, atol=1e-12)


def test_steps_that_tell_the_truth_keep_the_noise_that_there_is():
    generator = torch.Generator().manual_seed(0)
    clean, noise = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    state = run_back(cedi_steps(10, told_end=1e-3, end=1e-3), clean, noise)
    torch.testing.assert_close(state, math.sqrt(1 - 1e-6) * clean + 1e-3 * noise, rtol=1e-12, atol=1e-12)


def test_the_model_is_told_of_nearly_pure_noise_in_each_step():
    steps = cedi_steps(20)
    assert [step.time for step in steps] == pytest.approx(torch.linspace(1, 0.99, 21)[:-1].tolist())
    assert all(step.std == 0 for step in steps)
    assert steps[0].of_state == pytest.approx(1 + (1e-3 - 1) / 20)


def test_the_least_noise_reaches_the_nearest_neighbour():
    rows = torch.randn(2100, 3, generator=torch.Generator().manual_seed(0))
    distances = torch.cdist(rows.double(), rows.double()).fill_diagonal_(torch.inf)
    variance = distances.amin(dim=1).square().mean().item() / 3
    found = nearest_neighbour_deviation(rows).item()
    assert found == pytest.approx(math.sqrt(variance / (1 + variance)), rel=1e-4)
    assert nearest_neighbour_deviation(torch.ones(2, 3)) == 0
