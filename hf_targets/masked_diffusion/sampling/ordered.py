"""Samplers by the network's own order: its surest tokens first, or as many as hardly depend on each other."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.masked_diffusion.sampling.canvas import Window
from hf_targets.masked_diffusion.sampling.sampler import SAMPLERS, Sampler, check_count, keys_of, rank
from hf_targets.masked_diffusion.sampling.token_sampling import ENTRIES_AT_ONCE, TokenDraw
from hf_targets.maths.noise import NoiseSchedule, time_of_share


@dataclass(frozen=True)
class Confidence(Sampler):
    """Fills a window by drawing a token at every masked position and keeping the tokens with the highest probability.

    The confidence of a position is the probability of its drawn token under the network, without temperature or
    nucleus. Of equal confidences the left one comes first. After the next evaluation, all other tokens are drawn again.

    The resulting texts do not follow the distribution of the network. They repeat themselves more, which lowers their
    perplexity under another model. Report such a perplexity together with the entropy of the generated tokens.

    Args:
        num_steps: Number of steps. The masked tokens of each row are divided evenly among them, with one more in the
            first steps if they do not divide. A row with fewer tokens than steps unmasks one per step.
        tokens_per_step: Tokens that each step keeps, instead of `num_steps`. If both are None: one.
    Source: Nie et al. 2025, "Large Language Diffusion Models" (LLaDA), low-confidence remasking; Chang et al. 2022,
        "MaskGIT", which keeps more in later steps and adds noise to the confidence.
    """

    num_steps: int | None = None
    tokens_per_step: int | None = None

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        check_count("tokens_per_step", self.tokens_per_step)
        if self.num_steps is not None and self.tokens_per_step is not None:
            raise ValueError(
                f"num_steps={self.num_steps} and tokens_per_step={self.tokens_per_step} both say how many tokens a "
                "step unmasks; leave out one of them"
            )

    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all masked positions of a window."""
        at_start = window.masked.sum(dim=1)
        step = 0
        while (masked := window.masked).any():
            log_probabilities = window.log_probabilities(masked, time_of_share(masked.sum(dim=1), at_start, schedule))
            drawn = draw(log_probabilities)
            confidence = log_probabilities.gather(1, drawn[:, None])[:, 0]
            kept = most_confident(masked, confidence, self._quota(at_start, step))
            window.fill(kept, drawn[kept[masked]])
            step += 1

    def _quota(self, at_start: Int[Tensor, "batch"], step: int) -> Int[Tensor, "batch"]:
        if self.num_steps is None:
            return torch.full_like(at_start, self.tokens_per_step or 1)
        return at_start // self.num_steps + (step < at_start % self.num_steps)


def most_confident(
    masked: Bool[Tensor, "batch length"], confidence: Float[Tensor, "positions"], quota: Int[Tensor, "batch"]
) -> Bool[Tensor, "batch length"]:
    """Return each row's `quota` masked positions of the highest confidence, or all if there are fewer.

    Args:
        confidence: The confidence at each masked position, row by row.
    """
    return masked & (rank(keys_of(masked, -confidence)) < quota[:, None])


@dataclass(frozen=True)
class EntropyBound(Sampler):
    """Fills a window in order of rising entropy, in each step as many positions as the bound allows.

    Tokens of the same step are drawn independently of each other. With entropies H, the error of this is at most
    sum H - max H nats. Each step unmasks the most positions for which this is at most `entropy_bound`: one or more.

    The entropies are those of the network's distributions, without temperature or nucleus. Like unmasking by
    confidence, this makes texts repeat themselves more. Report a perplexity together with the entropy of the tokens.

    Args:
        entropy_bound: In nats. 0 unmasks one token per step, besides those with entropy 0; inf unmasks all at once.
    Source: Ben-Hamu et al. 2025, "Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking".
    """

    entropy_bound: float | None = None

    def __post_init__(self) -> None:
        if self.entropy_bound is None or not self.entropy_bound >= 0:
            raise ValueError(
                f"sampler='entropy_bound' needs entropy_bound, in nats, 0 or more, got {self.entropy_bound}; try 0.1 (0"
                " unmasks one token per step)"
            )

    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all masked positions of a window."""
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
    """Return, for each row, the most masked positions in order of rising entropy with sum H - max H <= bound.

    The last position taken has the largest entropy. So a position is taken if the entropies before it sum to at most
    the bound.

    Args:
        entropy: The entropy at each masked position, row by row.
    """
    keys = keys_of(masked, entropy)
    ordered = keys.sort(dim=1).values
    before = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(dim=1)[:, :-1]], dim=1)
    return masked & (before <= bound).gather(1, rank(keys))


SAMPLERS.register("confidence", Confidence)
SAMPLERS.register("entropy_bound", EntropyBound)
