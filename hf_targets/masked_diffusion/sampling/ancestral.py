"""Ancestral sampling: steps in time, at each of which every masked token has the same chance to be unmasked."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from hf_targets.masked_diffusion.sampling.sampler import Sampler, check_count
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.masked_diffusion.sampling.window import Window
from hf_targets.maths.noise import NoiseSchedule
from hf_targets.maths.unmasking_times import unmasking_steps


@dataclass(frozen=True)
class Ancestral(Sampler):
    """Fills a window in steps from t to s, evenly from time 1 to 0.

    A masked token is unmasked with chance (alpha(s) - alpha(t)) / (1 - alpha(t)), and is then a draw from the network's
    distribution at t. Tokens unmasked in one step do not see each other: more steps, fewer of those.

    That chance does not depend on the network, so that all of it is drawn first. The network's answer for a row is used
    only in steps that unmask some of it, of which there are at most as many as masked tokens. `Cached` does not
    evaluate the rows of other steps; here every row is evaluated until it is full. Tokens are the same either way, with
    the same random numbers and up to how rounding depends on the size of a batch.

    Args:
        num_steps: Steps in time; None takes as many as the row with the most masked tokens has.
    Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models", section 4.
    Departs: the published cache reuses an answer only while no token of the whole batch changes, and not with time
        conditioning; what is not evaluated here is never needed, so neither matters. See `unmasking_steps` for the end.
    """

    num_steps: int | None = None
    evaluates_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)

    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all that is masked in a window."""
        masked = window.masked
        num_steps = self.num_steps or int(masked.sum(dim=1).max())
        uniform = draw.uniforms(int(masked.sum()))
        steps = torch.full(masked.shape, -1, device=masked.device)
        steps[masked] = unmasking_steps(uniform, schedule, num_steps)
        for step in steps[masked].unique().tolist() if not self.evaluates_all else range(int(steps.max()) + 1):
            where = steps == step
            times = torch.full(masked.shape[:1], 1 - step / num_steps, dtype=torch.float64, device=masked.device)
            rows = None if not self.evaluates_all else (steps >= step).any(dim=1)
            window.fill(where, draw(window.log_probabilities(where, times, rows)))


@dataclass(frozen=True)
class Cached(Ancestral):
    """The tokens of `Ancestral`, without the evaluations that it does not use."""

    evaluates_all: ClassVar[bool] = False
