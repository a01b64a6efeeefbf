"""Unmasking by confidence: the tokens that the network is surest of come first."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.masked_diffusion.sampling.ranking import rank
from hf_targets.masked_diffusion.sampling.sampler import Sampler, check_count
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.masked_diffusion.sampling.window import Window
from hf_targets.maths.noise import NoiseSchedule
from hf_targets.maths.unmasking_times import time_of_share


@dataclass(frozen=True)
class Confidence(Sampler):
    """Fills a window by drawing a token at every masked position, and keeping those of the highest probability.

    The confidence of a position is the network's probability, without temperature or nucleus, of the token drawn there.
    Of equal ones the left is kept. The tokens not kept are drawn anew after the next evaluation.

    This is not the distribution that the network was trained for: text gets more repetitive, and perplexity under
    another model better for it. Report the entropy of what is generated beside perplexity.

    Args:
        num_steps: Shares the masked tokens of each row evenly among so many steps, one more in the first
            ones where it does not divide them; a row with fewer tokens than steps takes one a step.
        tokens_per_step: Tokens to keep at each step, in place of `num_steps`. None of both: one.
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
                "num_steps and tokens_per_step both say how many tokens a step unmasks, got "
                f"{self.num_steps} and {self.tokens_per_step}; leave out one of them"
            )

    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all that is masked in a window."""
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
        confidence: At the masked positions, row by row.
    """
    # finite, as what is not masked comes last, at inf
    doubt = torch.full(masked.shape, torch.inf, dtype=torch.float64, device=masked.device)
    doubt[masked] = -confidence.double().clamp(min=-1e300)
    return masked & (rank(doubt) < quota[:, None])
