r"""Gaussian diffusion of embeddings: how fast signal becomes noise, and the steps that lead back.

At step t of T an embedding z is z_t = sqrt(a_t) z + sqrt(1 - a_t) e with e from N(0, 1): a_t, called alpha-bar, is the
share of the variance that is signal. A step back replaces a state by a weighted sum of the predicted embedding, the
state, and new noise.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from hf_targets.maths.torch_modes import compiled_constant, without_autocast

_MOST_NOISE = 0.999
"""The largest share of signal that a single step removes."""

_SHARES: dict[str, Callable[[float], float]] = {
    "sqrt": lambda time: 1.0 - math.sqrt(time + 1e-4),
    "linear": lambda time: math.exp(-9.95 * time**2 - 0.1 * time),
    "cosine": lambda time: math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2,
}


@dataclass(frozen=True)
class ReverseStep:
    """A step from a state towards the clean text: of_prediction * predicted embedding + of_state * state + std * noise.

    Attributes:
        time: What the model is told, in the units of its time embedding.
        of_prediction: Weight of the predicted embedding.
        of_state: Weight of the state.
        std: Standard deviation of the noise that is added.
    """

    time: float
    of_prediction: float
    of_state: float
    std: float


@compiled_constant
@lru_cache
def signal_shares(name: str, num_steps: int) -> Float[Tensor, "steps"]:
    """Return a_t of the steps 0 to T - 1, in float64; the tensor is kept, so do not change it.

    a_t is the product over s <= t of max(a((s + 1) / T) / a(s / T), .001), where a(t) is

    | name     | a(t)                                  |
    |----------|---------------------------------------|
    | `sqrt`   | 1 - sqrt(t + 1e-4)                    |
    | `linear` | exp(-9.95 t^2 - .1 t)                 |
    | `cosine` | cos^2(pi / 2 * (t + .008) / 1.008)    |

    Source: Li et al. 2022, "Diffusion-LM" (`sqrt`); the published program of Difformer.
    """
    share = _SHARES[name]
    kept = [max(share((step + 1) / num_steps) / share(step / num_steps), 1 - _MOST_NOISE) for step in range(num_steps)]
    return torch.tensor(kept, dtype=torch.float64, device="cpu").cumprod(dim=0)


def spaced_steps(num_steps: int, count: int) -> list[int]:
    """Return `count` of the steps 0 to num_steps - 1, evenly spread, the first and the last among them.

    Their distances are added up and rounded in float, as published: a step between two may be the lower one.

    Source: `space_timesteps` of openai/improved-diffusion, respace.py, which Difformer's program has.

    >>> spaced_steps(2000, 20)[:3], spaced_steps(2000, 20)[-1]
    ([0, 105, 210], 1999)
    """
    if count == 1:
        return [num_steps - 1]
    return list(map(round, itertools.accumulate([0.0] + [(num_steps - 1) / (count - 1)] * (count - 1))))


def ancestral_steps(
    shares: Float[Tensor, "steps"], chosen: Sequence[int], *, num_skipped: int, time_scale: float
) -> list[ReverseStep]:
    """Return the steps back from pure noise: the posterior mean and deviation of each chosen step's predecessor.

    With a of a step, b of the chosen one before it (1 before the first) and k = a / b: weights sqrt(b) (1 - k) / (1 -
    a) of the prediction and sqrt(k) (1 - b) / (1 - a) of the state, variance (1 - k) (1 - b) / (1 - a).

    Args:
        shares: As `signal_shares` gives them.
        chosen: Steps in rising order.
        num_skipped: How many of the first, the least noisy ones, are left out.
        time_scale: Of the time that the model is told, per step.
    Source: Ho et al. 2020, "Denoising Diffusion Probabilistic Models", equations (6) and (7).
    """
    now = [shares[step].item() for step in chosen]
    before = [1.0, *now[:-1]]
    steps = []
    for step, a, b in list(zip(chosen, now, before, strict=True))[num_skipped:]:
        kept = a / b
        of_prediction, of_state = math.sqrt(b) * (1 - kept) / (1 - a), math.sqrt(kept) * (1 - b) / (1 - a)
        std = math.sqrt((1 - kept) * (1 - b) / (1 - a))
        steps.append(ReverseStep(step * time_scale, of_prediction, of_state, std))
    return steps[::-1]


def cedi_steps(num_steps: int, *, told_end: float = 0.99, end: float = 1e-3) -> list[ReverseStep]:
    """Return the deterministic steps in which a model is told of more noise than there is.

    A state with noise of deviation s is sqrt(1 - s^2) z + s e. The deviation falls evenly from 1 to `end`; the model is
    told that it falls from 1 to `told_end` only, and the noise that is kept is what the prediction and the told
    deviation leave.

    Source: Ye et al. 2023, "DINOISER", section 4.2 (CEDI).
    """
    steps = []
    for index in range(num_steps):
        told = 1.0 + (told_end - 1.0) * index / num_steps
        std = 1.0 + (end - 1.0) * (index + 1) / num_steps
        of_state = std / told
        of_prediction = math.sqrt(1 - std**2) - of_state * math.sqrt(1 - told**2)
        steps.append(ReverseStep(told, of_prediction, of_state, 0.0))
    return steps


def nearest_neighbour_deviation(embeddings: Float[Tensor, "rows dim"]) -> Float[Tensor, ""]:
    """Return the least deviation of noise that moves an embedding to another: the bound of DINOISER's noise clipping.

    With v the mean squared distance of a row to its nearest other row, divided by the dimension: sqrt(v / (1 + v)).

    Source: Ye et al. 2023, "DINOISER", section 4.1.
    """
    rows, nearest = embeddings.detach().float(), []
    with without_autocast(rows.device):
        for start, part in enumerate(rows.split(1024)):
            distances = torch.cdist(part, rows)
            distances.diagonal(1024 * start).fill_(torch.inf)
            nearest.append(distances.amin(dim=1))
    variance = torch.cat(nearest).square().mean() / rows.shape[1]
    return (variance / (1 + variance)).sqrt()
