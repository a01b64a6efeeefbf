"""The distributions that samplers draw from, against those worked out by hand, at fixed seeds."""

import pytest
import torch

from hf_targets.maths.noise import NoiseSchedule
from tests.masked_diffusion.sampling.denoisers import MASK, SAMPLERS, Product, Reader, canvas_of, chi_square, sample

SCHEDULES = ["log_linear", "cosine"]
EXACT = ["ancestral", "cached", "first_hitting"]


def pair_counts(sequences):
    return torch.zeros(MASK, MASK).index_put_((sequences[:, 0], sequences[:, 1]), torch.tensor(1.0), accumulate=True)


def one_at_a_time(denoiser, first, last):
    """p(a, b) for each of the times if one position of two is drawn at `first`, the other given it at `last`.

    Returns: (times, MASK, MASK), and the same if both are drawn at `first`, not seeing each other.
    """

    def p(canvas, position, times):
        return denoiser.logits(torch.tensor([canvas]).expand(len(times), -1), times)[:, position, :MASK].softmax(dim=1)

    left, right = p([MASK, MASK], 0, first), p([MASK, MASK], 1, first)
    right_given = torch.stack([p([a, MASK], 1, last) for a in range(MASK)], dim=1)
    left_given = torch.stack([p([MASK, b], 0, last) for b in range(MASK)], dim=2)
    return (left[:, :, None] * right_given + left_given * right[:, None]) / 2, left[:, :, None] * right[:, None]


def chain(denoiser, schedule, num_steps):
    """p(a, b) of ancestral sampling: over all steps at which the two may be unmasked, by the chance of each."""
    t = torch.linspace(1, 0, num_steps + 1, dtype=torch.float64)
    masked = schedule.masked(t)
    chances = 1 - masked[1:] / masked[:-1]
    chances[-1] = 1.0
    at = chances * torch.cat([torch.ones(1), (1 - chances).cumprod(dim=0)[:-1]])  # p(unmasked at this step)
    earlier, later = torch.triu_indices(num_steps, num_steps, offset=1)
    apart = one_at_a_time(denoiser, t[earlier], t[later])[0] * (2 * at[earlier] * at[later])[:, None, None]
    together = one_at_a_time(denoiser, t[:-1], t[:-1])[1] * at.square()[:, None, None]
    return apart.sum(dim=0) + together.sum(dim=0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sampler", ["ancestral", "cached"])
def test_ancestral_sampling_is_the_chain_of_its_steps(sampler, schedule):
    denoiser = Reader(2, seed=1, timed=True)
    expected = chain(denoiser, NoiseSchedule(schedule), num_steps=3)
    assert float(expected.sum()) == pytest.approx(1)
    output = sample(denoiser, (20_000, 2), sampler, num_steps=3, schedule=schedule)
    assert chi_square(pair_counts(output.sequences), expected) < 1.6  # 35 degrees of freedom: 1 in 100


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_first_hitting_draws_one_token_and_then_the_other_given_it(schedule):
    denoiser = Reader(2, seed=1)
    expected, together = (p[0] for p in one_at_a_time(denoiser, torch.ones(1), torch.ones(1)))
    counts = pair_counts(sample(denoiser, (20_000, 2), "first_hitting", schedule=schedule).sequences)
    assert chi_square(counts, expected) < 1.6
    assert chi_square(counts, together) > 10


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
def test_first_hitting_is_ancestral_sampling_with_many_steps_also_for_a_network_that_sees_the_time(schedule):
    denoiser = Reader(2, seed=1, timed=True)
    expected = chain(denoiser, NoiseSchedule(schedule), num_steps=150)
    counts = pair_counts(sample(denoiser, (20_000, 2), "first_hitting", schedule=schedule).sequences)
    assert chi_square(counts, expected) < 1.6


@pytest.mark.parametrize("sampler", EXACT)
def test_places_that_do_not_depend_on_each_other_have_their_own_distributions(sampler):
    denoiser = Product(3)
    ids = sample(denoiser, (10_000, 3), sampler, **SAMPLERS[sampler]).sequences
    for index, expected in enumerate(denoiser.probabilities()):
        assert chi_square(torch.bincount(ids[:, index], minlength=MASK), expected) < 3  # 5 degrees: 1 in 100


@pytest.mark.parametrize("sampler", EXACT)
def test_infilling_draws_from_the_distribution_given_the_rest(sampler):
    denoiser = Reader(2, seed=1)
    expected = denoiser.logits(torch.tensor([[MASK, 4]]), torch.ones(1))[0, 0, :MASK].softmax(dim=0)
    ids = sample(denoiser, canvas_of([[MASK, 4]] * 10_000), sampler, **SAMPLERS[sampler]).sequences
    assert chi_square(torch.bincount(ids[:, 0], minlength=MASK), expected) < 3


def test_several_tokens_a_step_are_drawn_without_seeing_each_other():
    denoiser = Reader(2, seed=1)
    counts = pair_counts(sample(denoiser, (20_000, 2), "first_hitting", tokens_per_step=2).sequences)
    assert chi_square(counts, one_at_a_time(denoiser, torch.ones(1), torch.ones(1))[1][0]) < 1.6
