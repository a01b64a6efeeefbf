"""Entropy-bounded unmasking: as many tokens at once as hardly depend on each other."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hf_targets.masked_diffusion.sampling.ranking import rank
from hf_targets.masked_diffusion.sampling.sampler import Sampler
from hf_targets.masked_diffusion.sampling.token_sampling import ENTRIES_AT_ONCE, TokenDraw
from hf_targets.masked_diffusion.sampling.window import Window
from hf_targets.maths.noise import NoiseSchedule
from hf_targets.maths.unmasking_times import time_of_share


@dataclass(frozen=True)
class EntropyBound(Sampler):
    """Fills a window from the positions of the lowest entropy on, as many at once as the bound allows.

    Drawing tokens at once ignores how they depend on each other, by at most sum H - max H nats of their entropies H.
    Each evaluation unmasks the most positions, by rising entropy, for which that is within the bound: always one.

    Entropies are those of the network's distributions, without temperature or nucleus. As unmasking by confidence,
    this makes text more repetitive: report the entropy of what is generated beside perplexity.

    Args:
        entropy_bound: In nats: 0 unmasks one token at a time beside those that are certain, inf all.
    Source: Ben-Hamu et al. 2025, "Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking".
    """

    entropy_bound: float | None = None

    def __post_init__(self) -> None:
        if self.entropy_bound is None:
            raise ValueError(
                "sampler='entropy_bound' needs entropy_bound, in nats: 0 unmasks a token at a time, more unmasks "
                "several; try 0.1"
            )
        if not self.entropy_bound >= 0:
            raise ValueError(
                f"entropy_bound is in nats and must be 0 or more, got {self.entropy_bound}; 0 unmasks a token at a time"
            )

    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all that is masked in a window."""
        assert self.entropy_bound is not None
        at_start = window.masked.sum(dim=1)
        while (masked := window.masked).any():
            log_probabilities = window.log_probabilities(masked, time_of_share(masked.sum(dim=1), at_start, schedule))
            chosen = within_bound(masked, entropies(log_probabilities), self.entropy_bound)
            window.fill(chosen, draw(log_probabilities[chosen[masked]]))


def entropies(log_probabilities: Float[Tensor, "positions vocab"]) -> Float[Tensor, "positions"]:
    """Return the entropy of each position in nats, in float64."""
    at_once = max(1, ENTRIES_AT_ONCE // log_probabilities.shape[1])
    some = [torch.special.entr(part.double().exp()).sum(dim=1) for part in log_probabilities.split(at_once)]
    return torch.cat(some).clamp(min=0)


def within_bound(
    masked: Bool[Tensor, "batch length"], entropy: Float[Tensor, "positions"], bound: float
) -> Bool[Tensor, "batch length"]:
    """Return the longest prefix of each row's masked positions, by rising entropy, with sum H - max H <= bound.

    As the last of a prefix has its largest entropy, a position is in it if the sum of those before is within the bound.

    Args:
        entropy: At the masked positions, row by row.
    """
    keys = torch.full(masked.shape, torch.inf, dtype=torch.float64, device=masked.device)
    keys[masked] = entropy.double()
    ordered = keys.sort(dim=1).values
    before = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(dim=1)[:, :-1]], dim=1)
    return masked & (before <= bound).gather(1, rank(keys))
