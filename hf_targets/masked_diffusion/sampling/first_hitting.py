"""First-hitting sampling: continuous time, one evaluation a token, exact."""

import torch

from hf_targets.masked_diffusion.sampling.filling import Window
from hf_targets.masked_diffusion.sampling.ranking import rank
from hf_targets.masked_diffusion.sampling.settings import SamplerSettings
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.maths.noise import NoiseSchedule
from hf_targets.maths.unmasking_times import hitting_times


def first_hitting(window: Window, settings: SamplerSettings, draw: TokenDraw, schedule: NoiseSchedule) -> None:
    """Fill a window token by token, in a random order, each at the very time at which one is unmasked.

    It is ancestral sampling with infinitely many steps: a row with m masked tokens takes m evaluations, whatever the
    schedule.

    Args:
        settings: `tokens_per_step` > 1 draws so many tokens of a row from one evaluation, at the time of the first of
            them. They do not see each other: an approximation.
    Source: Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic Masked Models and Exploit Inaccurate
        Categorical Sampling".
    """
    masked = window.masked
    num_masked = masked.sum(dim=1)
    batch, longest, at_once = len(masked), int(num_masked.max()), settings.tokens_per_step or 1
    keys = torch.full(masked.shape, torch.inf, dtype=torch.float64, device=masked.device)
    keys[masked] = draw.uniforms(int(masked.sum()))  # none for padding, which so changes nothing
    order = rank(keys)
    times = hitting_times(draw.uniforms(batch, longest), num_masked, schedule)
    for first in range(0, longest, at_once):
        where = masked & (order >= first) & (order < first + at_once)
        window.fill(where, draw(window.log_probabilities(where, times[:, first])))
