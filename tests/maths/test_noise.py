from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.maths.noise import (
    NoiseSchedule,
    ScheduleName,
    antithetic_times,
    hitting_times,
    mask_tokens,
    time_of_share,
    unmasking_steps,
)

SCHEDULES = [*map(NoiseSchedule, get_args(ScheduleName))]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=get_args(ScheduleName))
TIMES = torch.linspace(1e-3, 1, 101, dtype=torch.float64)
LOG_LINEAR = NoiseSchedule()
MASK = 99


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def exactly(got, wanted, tolerance=1e-12):
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=0)


@every_schedule
def test_the_weight_is_the_growth_of_the_masked_chance_over_it(schedule):
    t = TIMES.clone().requires_grad_()
    growth = torch.autograd.grad(schedule.masked(t).sum(), t)[0]
    exactly(schedule.weight(TIMES), growth / schedule.masked(TIMES), 1e-9)


@every_schedule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_loss_is_ever_rewarded(schedule, dtype):
    t = torch.cat([torch.linspace(1e-3, 1, 1001, dtype=dtype), torch.tensor([1 - 6e-8], dtype=dtype)])
    assert (schedule.weight(t) >= 0).all()


@every_schedule
def test_sigma_is_minus_log_of_what_the_masked_chance_leaves(schedule):
    exactly(schedule.sigma(TIMES), -(1 - schedule.masked(TIMES)).log(), 1e-9)


@every_schedule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_time_of_a_masked_chance_inverts_the_chance(schedule, dtype):
    t = torch.linspace(0, 1, 101, dtype=dtype)
    found = schedule.time_of_masked(schedule.masked(t))
    torch.testing.assert_close(found, t, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-9)


@every_schedule
def test_a_chance_that_no_time_has_gets_the_nearer_end_of_time(schedule):
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert torch.equal(schedule.time_of_masked(ends), ends)


@every_schedule
def test_nothing_is_masked_at_first_and_all_but_a_thousandth_in_the_end(schedule):
    ends = schedule.masked(torch.tensor([0.0, 1.0], dtype=torch.float64))
    exactly(ends, torch.tensor([0.0, 1 - 1e-3], dtype=torch.float64))


@every_schedule
def test_few_masked_tokens_are_counted_without_cancellation_in_float32(schedule):
    t = torch.tensor([1e-6, 1e-4, 1e-2])
    exactly(schedule.masked(t).double(), schedule.masked(t.double()), 1e-5)
    exactly(schedule.weight(t).double(), schedule.weight(t.double()), 1e-5)


@given(count=st.integers(1, 200), seed=st.integers(0, 99), smallest=st.sampled_from([0.0, 1e-3, 0.5]))
def test_each_of_n_equal_parts_has_one_time(count, seed, smallest):
    t = antithetic_times(count, generator=seeded(seed), smallest=smallest).sort().values
    parts = (t.double() - smallest) / (1 - smallest) * count - torch.arange(count)
    assert t.shape == (count,)
    assert parts.min() > -1e-3 and parts.max() < 1 + 1e-3  # float32 times
    assert t.min() >= smallest and t.max() <= 1


def test_the_time_at_each_place_of_a_batch_is_uniform_and_a_mean_over_the_batch_is_steadier():
    generator = seeded()
    batches = torch.stack([antithetic_times(8, generator=generator, smallest=0.0) for _ in range(2000)])
    for at_one_place in batches.T:
        counts = torch.histc(at_one_place, bins=10, min=0, max=1) / len(batches)
        assert (counts - 0.1).abs().max() < 0.03
    independent = torch.rand(2000, 8, generator=generator)
    assert batches.mean(dim=1).var() < independent.mean(dim=1).var() / 20


def test_times_come_from_the_generator_alone():
    torch.manual_seed(1)
    once = antithetic_times(5, generator=seeded(3))
    torch.manual_seed(2)
    assert torch.equal(antithetic_times(5, generator=seeded(3)), once)
    assert not torch.equal(antithetic_times(5, generator=seeded(4)), once)
    torch.manual_seed(1)
    assert torch.equal(antithetic_times(5), antithetic_times(5, generator=seeded(1)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_cpu_seed_gives_the_same_times_and_masks_on_a_gpu():
    times = antithetic_times(4, generator=seeded(), device="cuda")
    assert times.is_cuda and torch.equal(times.cpu(), antithetic_times(4, generator=seeded()))
    ids, may = torch.arange(40).view(4, 10), torch.ones(4, 10, dtype=torch.bool)
    canvas = mask_tokens(ids.cuda(), times[:, None], may.cuda(), MASK, LOG_LINEAR, generator=seeded())
    assert torch.equal(canvas.cpu(), mask_tokens(ids, times.cpu()[:, None], may, MASK, LOG_LINEAR, generator=seeded()))


@every_schedule
def test_tokens_are_masked_at_the_rate_of_their_rows_time(schedule):
    times, ids = torch.tensor([0.05, 0.5, 0.95]), torch.zeros(3, 20_000, dtype=torch.long)
    canvas = mask_tokens(
        ids, times[:, None], torch.ones_like(ids, dtype=torch.bool), MASK, schedule, generator=seeded()
    )
    share = (canvas == MASK).float().mean(dim=1)
    torch.testing.assert_close(share, schedule.masked(times), rtol=0, atol=0.015)


@given(seed=st.integers(0, 99), time=st.floats(0, 1, width=32))
def test_only_tokens_that_may_be_masked_ever_are_and_others_stay_themselves(seed, time):
    generator = seeded(seed)
    ids, may = torch.randint(50, (3, 9), generator=generator), torch.rand(3, 9, generator=generator) < 0.5
    before = ids.clone()
    canvas = mask_tokens(ids, torch.full((3, 1), time), may, MASK, LOG_LINEAR, generator=generator)
    assert torch.equal(ids, before)
    assert (canvas[~may] == ids[~may]).all()
    assert ((canvas == ids) | (canvas == MASK)).all()


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("right", [0, 3, 40])
def test_padding_changes_nothing_about_which_tokens_are_masked(left, right):
    ids, times = torch.arange(24).view(4, 6), torch.linspace(0.2, 0.9, 4)
    bare = mask_tokens(
        ids, times[:, None], torch.ones_like(ids, dtype=torch.bool), MASK, LOG_LINEAR, generator=seeded()
    )
    padded = torch.nn.functional.pad(ids, (left, right), value=77)
    canvas = mask_tokens(padded, times[:, None], padded != 77, MASK, LOG_LINEAR, generator=seeded())
    assert torch.equal(canvas, torch.nn.functional.pad(bare, (left, right), value=77))


@every_schedule
def test_the_weighted_loss_of_a_constant_predictor_is_its_surprise_times_what_is_ever_masked(schedule):
    """The mean of weight(t) * [masked at t] over time is the integral of -alpha', for a schedule of any shape."""
    generator, length, smallest = seeded(), 400, 1e-2
    t = antithetic_times(2000, generator=generator, smallest=smallest)
    ids = torch.zeros(2000, length, dtype=torch.long)
    canvas = mask_tokens(ids, t[:, None], torch.ones_like(ids, dtype=torch.bool), MASK, schedule, generator=generator)
    estimate = (1 - smallest) * (schedule.weight(t)[:, None] * (canvas == MASK)).mean()
    ends = torch.tensor([smallest, 1.0])
    wanted = schedule.masked(ends)[1] - schedule.masked(ends)[0]
    torch.testing.assert_close(estimate, wanted, rtol=0.01, atol=0)


@given(schedule=st.sampled_from(SCHEDULES), num_steps=st.integers(1, 40))
def test_of_tokens_still_masked_each_step_unmasks_the_share_of_the_formula(schedule, num_steps):
    count = 100_000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count  # every part of [0, 1) once
    shares = torch.bincount(unmasking_steps(uniform, schedule, num_steps), minlength=num_steps) / count
    masked = schedule.masked(torch.linspace(1, 0, num_steps + 1, dtype=torch.float64))
    chances = 1 - masked[1:] / masked[:-1]
    chances[-1] = 1.0
    expected = chances * torch.cat([torch.ones(1), (1 - chances).cumprod(dim=0)[:-1]])
    torch.testing.assert_close(shares.double(), expected, rtol=0, atol=2 / count)


@every_schedule
def test_the_last_step_leaves_nothing_masked(schedule):
    uniform = torch.tensor([0.0, 1e-300, 0.5, 1 - 2**-53], dtype=torch.float64)
    steps = unmasking_steps(uniform, schedule, 4)
    assert steps[0] == 3
    assert steps[-1] == 0
    assert ((steps >= 0) & (steps < 4)).all()


@every_schedule
def test_the_hits_of_a_row_are_independent_times_of_its_tokens_put_in_order(schedule):
    generator = seeded()
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


@every_schedule
def test_as_many_tokens_are_masked_at_the_time_of_a_share_as_there_are(schedule):
    times = time_of_share(torch.tensor([8, 6, 4]), torch.full((3,), 8), schedule)
    assert float(times[0]) == pytest.approx(1)
    share = schedule.masked(times) / schedule.masked(torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(share, torch.tensor([1, 0.75, 0.5], dtype=torch.float64))
