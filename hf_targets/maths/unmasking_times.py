"""The times at which masked tokens are unmasked; in masked diffusion they do not depend on the predicted tokens.

Time runs from 1, at which all positions to be filled are masked, to 0. A token that is masked at t is still masked at
s < t with probability (1 - alpha(s)) / (1 - alpha(t)), independently of other tokens.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hf_targets.maths.noise import NoiseSchedule


def unmasking_steps(
    uniform: Float[Tensor, "positions"], schedule: NoiseSchedule, num_steps: int
) -> Int[Tensor, "positions"]:
    """Return the step, in [0, `num_steps` - 1], at which each position is unmasked; step i begins at 1 - i / num_steps.

    It is the first step whose end s has (1 - alpha(s)) / (1 - alpha(1)) <= u. The distribution is that of deciding at
    each step from t to s, for each masked token, to unmask it with probability (alpha(s) - alpha(t)) / (1 - alpha(t)).

    Args:
        uniform: u, a uniform random number in [0, 1) for each position.
    Departs: our last step ends at 0 and leaves nothing masked. The published program ends at 1e-5, and then fills the
        positions that are still masked with the most probable tokens.
    """
    ends = torch.arange(num_steps - 1, -1, -1, dtype=uniform.dtype, device=uniform.device) / num_steps
    still_masked = schedule.masked(ends) / schedule.masked(torch.ones_like(ends))
    still_masked[-1] = 0.0  # also where alpha(0) < 1
    return num_steps - torch.searchsorted(still_masked.flip(0), uniform, right=True)


def hitting_times(
    uniform: Float[Tensor, "batch hits"], num_masked: Int[Tensor, "batch"], schedule: NoiseSchedule
) -> Float[Tensor, "batch hits"]:
    """Return the times at which masked tokens are unmasked one after another, in continuous time.

    If m tokens are masked at time t, the next is unmasked at the time s where 1 - alpha(s) = (1 - alpha(t)) u^(1/m),
    the largest of m independent times. It is each of the m tokens with equal probability, independently of the time.

    Args:
        uniform: u of each hit, a uniform random number in [0, 1).
        num_masked: Number of masked tokens of each row: so many first entries of the result have a meaning.
    Source: Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic Masked Models and Exploit Inaccurate
        Categorical Sampling", the first-hitting sampler.
    """
    hits = torch.arange(uniform.shape[1], device=uniform.device)
    left = (num_masked[:, None] - hits).clamp(min=1).to(uniform.dtype)
    shares = (uniform ** (1 / left)).cumprod(dim=1)
    return schedule.time_of_masked(shares * schedule.masked(torch.ones_like(shares)))


def time_of_share(
    num_masked: Int[Tensor, "batch"], num_at_start: Int[Tensor, "batch"], schedule: NoiseSchedule
) -> Float[Tensor, "batch"]:
    """Return the time at which the expected number of masked tokens equals the present one; it is 1 at the start.

    Samplers that unmask in an order, not by time, give it to a network that is conditioned on time.
    """
    share = num_masked.double() / num_at_start.clamp(min=1)
    return schedule.time_of_masked(share * schedule.masked(torch.ones_like(share)))
