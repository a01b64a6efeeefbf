"""Samplers from the network's own distribution: ancestral sampling in steps, and first hitting without."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from hf_targets.masked_diffusion.sampling.canvas import Window
from hf_targets.masked_diffusion.sampling.sampler import SAMPLERS, Sampler, check_count, keys_of, rank
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.maths.noise import NoiseSchedule, hitting_times, unmasking_steps


@dataclass(frozen=True)
class Ancestral(Sampler):
    """Fills a window in steps of equal size, each from time t to s, from time 1 to 0.

    A step unmasks each masked token with probability (alpha(s) - alpha(t)) / (1 - alpha(t)), and draws it from the
    network's distribution at t. Tokens unmasked in the same step do not see each other; with more steps there are fewer
    such tokens.

    That probability does not depend on the network, so the step of each token is drawn at the start. The network's
    output for a row is needed only in steps that unmask a token of the row: at most one step for each masked token.
    `Cached` evaluates a row only in these steps; `Ancestral` evaluates it in every step until the row is full. With the
    same random numbers both give the same tokens, except where rounding depends on the batch size.

    Args:
        num_steps: Number of steps; None: the largest number of masked tokens in a row.
    Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models", section 4.
    Departs: the published cache reuses an output only while no token of the whole batch changes, and never with time
        conditioning. `Cached` needs neither rule: it skips only outputs that are not used. `unmasking_steps` says how
        the last step differs.
    """

    num_steps: int | None = None
    evaluates_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)

    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all masked positions of a window."""
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
    """`Ancestral` without the evaluations whose outputs are not used; the tokens are the same."""

    evaluates_all: ClassVar[bool] = False


@dataclass(frozen=True)
class FirstHitting(Sampler):
    """Fills a window token by token in a random order, and evaluates the network at the exact time of each unmasking.

    This is ancestral sampling with infinitely many steps. A row with m masked tokens needs m evaluations for every
    schedule.

    Args:
        tokens_per_step: Tokens of a row drawn from one evaluation, at the time of the first of them; None: 1. More than
            1 is an approximation, as these tokens do not see each other.
    Source: Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic Masked Models and Exploit Inaccurate
        Categorical Sampling".
    """

    tokens_per_step: int | None = None

    def __post_init__(self) -> None:
        check_count("tokens_per_step", self.tokens_per_step)

    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all masked positions of a window."""
        masked = window.masked
        num_masked = masked.sum(dim=1)
        batch, longest, at_once = len(masked), int(num_masked.max()), self.tokens_per_step or 1
        order = rank(keys_of(masked, draw.uniforms(int(masked.sum()))))  # padding uses none, so it changes nothing
        times = hitting_times(draw.uniforms(batch, longest), num_masked, schedule)
        for first in range(0, longest, at_once):
            where = masked & (order >= first) & (order < first + at_once)
            window.fill(where, draw(window.log_probabilities(where, times[:, first])))


SAMPLERS.register("ancestral", Ancestral)
SAMPLERS.register("cached", Cached)
SAMPLERS.register("first_hitting", FirstHitting)
