"""When tokens are unmasked: the law of one step, drawn at once, and of continuous time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.maths.noise import NoiseSchedule, hitting_times, time_of_share, unmasking_steps

SCHEDULES = ["log_linear", "cosine", "cosine_squared", "linear", "geometric"]


@settings(derandomize=True, deadline=None, max_examples=20)
@given(name=st.sampled_from(SCHEDULES), num_steps=st.integers(1, 40))
def test_of_tokens_still_masked_each_step_unmasks_the_share_of_the_formula(name, num_steps):
    schedule, count = NoiseSchedule(name), 100_000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count  # every part of [0, 1) once
    shares = torch.bincount(unmasking_steps(uniform, schedule, num_steps), minlength=num_steps) / count
    alpha = schedule.alpha(torch.linspace(1, 0, num_steps + 1, dtype=torch.float64))
    chances = (alpha[1:] - alpha[:-1]) / (1 - alpha[:-1])
    chances[-1] = 1.0
    expected = chances * torch.cat([torch.ones(1), (1 - chances).cumprod(dim=0)[:-1]])
    torch.testing.assert_close(shares.double(), expected, rtol=0, atol=2 / count)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_last_step_leaves_nothing_masked(name):
    uniform = torch.tensor([0.0, 1e-300, 0.5, 1 - 2**-53], dtype=torch.float64)
    steps = unmasking_steps(uniform, NoiseSchedule(name), 4)
    assert steps[0] == 3
    assert steps[-1] == 0
    assert ((steps >= 0) & (steps < 4)).all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_hits_of_a_row_are_independent_times_of_its_tokens_put_in_order(name):
    schedule, generator = NoiseSchedule(name), torch.Generator().manual_seed(0)
    uniform = torch.rand(40_000, 3, dtype=torch.float64, generator=generator)
    times = hitting_times(uniform, torch.full((40_000,), 3), schedule)
    assert (times[:, :-1] >= times[:, 1:]).all()
    start = schedule.masked(torch.ones(1, dtype=torch.float64))
    each = torch.rand(40_000, 3, dtype=torch.float64, generator=generator)
    expected = schedule.time_of_masked(each * start).sort(dim=1, descending=True).values
    quantiles = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
    # 4 standard errors of a quantile of 40,000, at the lowest density of these schedules
    torch.testing.assert_close(times.quantile(quantiles, dim=0), expected.quantile(quantiles, dim=0), rtol=0, atol=0.02)


def test_rows_with_fewer_masked_tokens_wait_longer_for_the_first():
    uniform = torch.full((3, 4), 0.5, dtype=torch.float64)
    times = hitting_times(uniform, torch.tensor([1, 2, 3]), NoiseSchedule())
    expected = torch.tensor([0.5, 0.5 ** (1 / 2), 0.5 ** (1 / 3)], dtype=torch.float64)
    torch.testing.assert_close(times[:, 0], expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(times[1, 1], times[1, 0] * 0.5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_as_many_tokens_are_masked_at_the_time_of_a_share_as_there_are(name):
    schedule = NoiseSchedule(name)
    times = time_of_share(torch.tensor([8, 6, 4]), torch.full((3,), 8), schedule)
    assert float(times[0]) == pytest.approx(1)
    share = schedule.masked(times) / schedule.masked(torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(share, torch.tensor([1, 0.75, 0.5], dtype=torch.float64))
