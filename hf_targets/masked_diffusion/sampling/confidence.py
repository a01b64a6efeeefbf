"""Unmasking by confidence: the most probable tokens come first."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.masked_diffusion.sampling.canvas import Window
from hf_targets.masked_diffusion.sampling.sampler import Sampler, check_count, rank
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
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
    # the clamp keeps doubt finite, so that unmasked positions, at inf, come last
    doubt = torch.full(masked.shape, torch.inf, dtype=torch.float64, device=masked.device)
    doubt[masked] = -confidence.double().clamp(min=-1e300)
    return masked & (rank(doubt) < quota[:, None])
