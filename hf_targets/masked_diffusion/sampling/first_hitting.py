"""First-hitting sampling: exact sampling in continuous time, with one evaluation per token."""

from dataclasses import dataclass

import torch

from hf_targets.masked_diffusion.sampling.ranking import rank
from hf_targets.masked_diffusion.sampling.sampler import Sampler, check_count
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.masked_diffusion.sampling.window import Window
from hf_targets.maths.noise import NoiseSchedule, hitting_times


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
        keys = torch.full(masked.shape, torch.inf, dtype=torch.float64, device=masked.device)
        keys[masked] = draw.uniforms(int(masked.sum()))  # padding uses none, so it changes nothing
        order = rank(keys)
        times = hitting_times(draw.uniforms(batch, longest), num_masked, schedule)
        for first in range(0, longest, at_once):
            where = masked & (order >= first) & (order < first + at_once)
            window.fill(where, draw(window.log_probabilities(where, times[:, first])))
