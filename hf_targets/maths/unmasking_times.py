"""When masked tokens are unmasked, which in masked diffusion does not depend on what they become.

Time runs from 1, where all that is to be filled is masked, to 0. A token masked at t is masked at s < t still with
chance (1 - alpha(s)) / (1 - alpha(t)), each token on its own.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hf_targets.maths.noise import NoiseSchedule


def unmasking_steps(
    uniform: Float[Tensor, "positions"], schedule: NoiseSchedule, num_steps: int
) -> Int[Tensor, "positions"]:
    """Return at which of the steps 0 to `num_steps` - 1, from time 1 - i / num_steps to the next, each is unmasked.

    It is the first step that ends with (1 - alpha(s)) / (1 - alpha(1)) <= u: drawn at once, this is the law of tossing
    at every step from t to s for every masked token, with chance (alpha(s) - alpha(t)) / (1 - alpha(t)).

    Args:
        uniform: u, a number in [0, 1) for each position.
    Departs: the last step ends at 0 and leaves nothing masked. The published program ends at 1e-5, and takes the most
        probable token for whatever is left.
    """
    ends = torch.arange(num_steps - 1, -1, -1, dtype=uniform.dtype, device=uniform.device) / num_steps
    still_masked = schedule.masked(ends) / schedule.masked(torch.ones_like(ends))
    still_masked[-1] = 0.0  # also where alpha(0) < 1
    return num_steps - torch.searchsorted(still_masked.flip(0), uniform, right=True)


def hitting_times(
    uniform: Float[Tensor, "batch hits"], num_masked: Int[Tensor, "batch"], schedule: NoiseSchedule
) -> Float[Tensor, "batch hits"]:
    """Return the times at which one masked token after another is unmasked in continuous time.

    With m masked at time t, the next is unmasked at the time s where 1 - alpha(s) = (1 - alpha(t)) u^(1/m): the last
    of m independent times. Which token that is does not depend on it: each is as likely.

    Args:
        uniform: u of each hit, in [0, 1). Of a row, the first `num_masked` are hits; what follows has no meaning.
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
    """Return the time at which as many tokens are masked, in the mean, as are now; 1 at the start.

    It is what samplers that unmask by order, not by time, tell a network that is conditioned on time.
    """
    share = num_masked.double() / num_at_start.clamp(min=1)
    return schedule.time_of_masked(share * schedule.masked(torch.ones_like(share)))
