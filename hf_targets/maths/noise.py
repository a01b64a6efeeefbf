r"""The noise of masked diffusion: schedules, the times to train on, the masking of tokens, and when they are unmasked.

Time t is in [0, 1]. At time t a token is unmasked with probability alpha(t), which falls from about 1 to about 0, and
otherwise it is the mask token; a masked token stays masked. In training, -log p(token) at the masked positions has
weight -alpha'(t) / (1 - alpha(t)): the mean of the loss over t is then the negative evidence lower bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ScheduleName = Literal["log_linear", "cosine", "cosine_squared"]

ALPHA_MIN = 1e-3
"""alpha(1), so that -log alpha(1) is finite."""

MIN_TIME = 1e-3
"""The smallest time to train on, as the loss weight grows like 1 / t."""


@dataclass(frozen=True)
class NoiseSchedule:
    """A noise schedule: the chance 1 - alpha(t) of the mask for t in [0, 1], and the loss weights that follow from it.

    With e = 1e-3:

    | name             | 1 - alpha(t)                |
    |------------------|-----------------------------|
    | `log_linear`     | (1 - e) t                   |
    | `cosine`         | (1 - e) (1 - cos(pi t / 2)) |
    | `cosine_squared` | (1 - e) sin^2(pi t / 2)     |

    Methods take tensors of any shape, in float32 or float64.

    Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models": schedules and constants of the
        published program, which also has a linear and a geometric one.
    """

    name: ScheduleName = "log_linear"

    def masked(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """Return 1 - alpha(t), the probability that a token is masked at time t, to full relative precision near 0."""
        match self.name:
            case "log_linear":
                return (1 - ALPHA_MIN) * t
            case "cosine":
                return 2 * (1 - ALPHA_MIN) * torch.sin(math.pi / 4 * t).square()
            case "cosine_squared":
                return (1 - ALPHA_MIN) * torch.sin(math.pi / 2 * t).square()

    def sigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """Return -log alpha(t), the total noise, which is the input of a network that is conditioned on time."""
        return -torch.log1p(-self.masked(t))

    def weight(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """Return -alpha'(t) / (1 - alpha(t)), the loss weight of a masked token at time t, inf at t = 0.

        For `log_linear` it is 1 / t, although a token is masked with probability (1 - 1e-3) t.
        """
        match self.name:
            case "log_linear":
                return 1 / t
            case "cosine":
                return math.pi / 2 / torch.tan(math.pi / 4 * t)
            case "cosine_squared":
                return (math.pi / torch.tan(math.pi / 2 * t)).clamp(min=0)

    def time_of_masked(self, masked: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """Return the time t at which `masked(t)` is the given probability; if there is none, the nearer of 0 and 1."""
        share = masked / (1 - ALPHA_MIN)
        match self.name:
            case "log_linear":
                t = share
            case "cosine":
                t = 4 / math.pi * torch.asin((share / 2).clamp(0, 1).sqrt())
            case "cosine_squared":
                t = 2 / math.pi * torch.asin(share.clamp(0, 1).sqrt())
        return t.clamp(0, 1)


def drawn(
    draw: Callable[..., Tensor],
    shape: Sequence[int],
    generator: torch.Generator | None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return `torch.rand` or `torch.randn` of a shape, drawn on the generator's device, then moved to `device`.

    So a seed gives the same numbers on every device. None: torch's own generator, and the device of the generator.
    """
    if generator is None:  # torch.compile cannot trace this argument, even None, once batches of two sizes came
        return draw(shape, device=device)
    numbers = draw(shape, generator=generator, device=generator.device)
    return numbers if device is None else numbers.to(device)


def antithetic_times(
    count: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    smallest: float = MIN_TIME,
) -> Float[Tensor, "count"]:
    """Return random times, one in each of `count` equal parts of [smallest, 1], the parts in random order.

    A time is smallest + (1 - smallest) (i + u_i) / count with u_i uniform in [0, 1), so each is uniform in
    [smallest, 1). Their mean varies far less than that of independent times, and so does a mean of weighted losses.

    Args:
        generator: Source of the random numbers, on its own device: a seed gives the same times for every `device`.
        device: Device of the result; None: that of the generator, or torch's default device.
    Source: Sahoo et al. 2024, its published program.  Departs: there the parts are in increasing order, so that the
        place of a row in its batch, where interleaved or sorted data has a pattern, would tell its time.
    """
    uniform = drawn(torch.rand, (count,), generator, device)
    parts = (drawn(torch.rand, (count,), generator, device).argsort() + uniform) / count
    return smallest + (1 - smallest) * parts


def mask_tokens(
    ids: Int[Tensor, "batch length"],
    times: Float[Tensor, "batch #length"],
    may_mask: Bool[Tensor, "batch length"],
    mask_token_id: int,
    schedule: NoiseSchedule,
    *,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch length"]:
    """Return the canvas: `ids` with tokens masked at random, each with probability `schedule.masked` at its time.

    Random numbers are assigned, row after row, only to the tokens that may be masked. So with a generator on the CPU,
    padding does not change which tokens are masked.

    Args:
        times: The time of each row or of each token, in [0, 1].
        may_mask: True for the tokens that may be masked.
        generator: Source of the random numbers, on its own device, which may differ from that of `ids`.
    """
    may = may_mask.flatten()
    uniform = drawn(torch.rand, may.shape, generator, ids.device)[may.cumsum(0) - 1].view_as(ids)
    return ids.masked_fill(may_mask & (uniform < schedule.masked(times)), mask_token_id)


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
