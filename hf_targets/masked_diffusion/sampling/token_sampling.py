"""Sampling of tokens: the Gumbel trick in float64, temperature, top-p, and the source of random numbers."""

import math
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import TopPLogitsWarper

from hf_targets.maths.noise import drawn

ENTRIES_AT_ONCE = 2**22
"""Positions x vocabulary sampled at once: float64 noise for all masked tokens of a batch would take gigabytes."""


class TokenDraw:
    """Samples tokens from a network's distributions p at a temperature: from p^(1 / temperature), normalised.

    By the Gumbel trick, a sample is argmax_v log p(v) + temperature * g_v with g_v = -log(-log(u_v)) and u_v uniform.

    Args:
        mask_token_id: The mask's id, which is never drawn.
        device: Of the log-probabilities.
        generator: The source of random numbers, on any device; None: the device's own. Temperature 0 uses none.
        temperature: 0 or more; 0 takes the most probable token.
        top_p: Samples only from the smallest set of most probable tokens whose probabilities sum to at least this; 1
            and None: from all tokens.
    Raises:
        ValueError: If a value is out of range.
    Departs: published samples were drawn in float32, which has no u within 6e-8 of 1. This cuts off the largest g and
        so lowers the effective temperature (Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic
        Masked Models and Exploit Inaccurate Categorical Sampling"). Ours are drawn in float64.
    """

    def __init__(
        self,
        mask_token_id: int,
        device: torch.device,
        *,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        top_p: float | None = None,
    ) -> None:
        if not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be 0 or more, got {temperature}; 0 takes the most probable token")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p is a probability and must be in (0, 1], got {top_p}; None or 1 keeps all tokens")
        self._mask_token_id, self._device, self._generator = mask_token_id, device, generator
        self._temperature = temperature
        self._nucleus = TopPLogitsWarper(1.0 if top_p is None else top_p)

    def uniforms(self, *shape: int) -> Tensor:
        """Return the next uniform numbers in [0, 1), in float64."""
        return drawn(partial(torch.rand, dtype=torch.float64), shape, self._generator, self._device)

    def __call__(self, log_probabilities: Float[Tensor, "positions vocab"]) -> Int[Tensor, "positions"]:
        """Draw a token for each position; random numbers are used in the order of the positions.

        Raises:
            ValueError: If a log-probability is NaN.
        """
        at_once = max(1, ENTRIES_AT_ONCE // log_probabilities.shape[1])
        return torch.cat([self._draw(some) for some in log_probabilities.split(at_once)])

    def _draw(self, log_probabilities: Tensor) -> Tensor:
        mask = torch.tensor([self._mask_token_id], device=log_probabilities.device)
        scores = log_probabilities.double().index_fill(1, mask, -math.inf)
        if self._nucleus.top_p < 1:
            scores = self._nucleus(None, scores)  # pyright: ignore[reportArgumentType]
        if self._temperature > 0:
            uniform = self.uniforms(*scores.shape)
            uniform = uniform.clamp(min=torch.finfo(torch.float64).tiny)  # u = 0 gives -inf, even to the only token
            scores = scores.sub(uniform.log_().neg_().log_(), alpha=self._temperature)
        best, tokens = scores.max(dim=1)
        if best.isnan().any():
            raise ValueError("the network's log-probabilities are not numbers (NaN); run it in bfloat16 or float32")
        return tokens
