"""Sampling of tokens: the Gumbel trick in float64, temperature, top-p, and the source of random numbers."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

ENTRIES_AT_ONCE = 2**22
"""Positions x vocabulary sampled at once: float64 noise for all masked tokens of a batch would take gigabytes."""


class Uniforms:
    """Uniform numbers in [0, 1) on a device, from a generator on that device or on the CPU.

    Raises:
        ValueError: If the generator is on another device.
    """

    def __init__(self, generator: torch.Generator | None, device: torch.device) -> None:
        if generator is not None and generator.device.type not in ("cpu", device.type):
            raise ValueError(
                f"generator must be on the CPU or on the model's device, {device}, got one on {generator.device}; "
                f"create it with torch.Generator({device.type!r})"
            )
        self._generator = generator
        self._device = device

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the next numbers as a tensor of this shape."""
        source = self._device if self._generator is None else self._generator.device
        return torch.rand(shape, dtype=dtype, generator=self._generator, device=source).to(self._device)


class TokenDraw:
    """Samples tokens from a network's distributions p at a temperature: from p^(1 / temperature), normalised.

    By the Gumbel trick, a sample is argmax_v log p(v) + temperature * g_v with g_v = -log(-log(u_v)) and u_v uniform.
    Float32 has no u within 6e-8 of 1. This cuts off the largest g and so lowers the effective temperature.

    Args:
        uniforms: The source of random numbers; temperature 0 uses none.
        mask_token_id: The mask's id, which is never drawn.
        temperature: 0 or more; 0 takes the most probable token.
        top_p: Samples only from the smallest set of most probable tokens whose probabilities sum to at least this; 1
            and None: from all tokens.
        float64: Whether to sample in float64; False: in float32, as published samples were.
    Raises:
        ValueError: If a value is out of range.
    Source: Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic Masked Models and Exploit Inaccurate
        Categorical Sampling": the effect of float32.
    """

    def __init__(
        self,
        uniforms: Uniforms,
        mask_token_id: int,
        *,
        temperature: float = 1.0,
        top_p: float | None = None,
        float64: bool = True,
    ) -> None:
        if not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be 0 or more, got {temperature}; 0 takes the most probable token")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p is a probability and must be in (0, 1], got {top_p}; None or 1 keeps all tokens")
        self.uniforms = uniforms
        self._mask_token_id = mask_token_id
        self._temperature = temperature
        self._top_p = 1.0 if top_p is None else top_p
        self._dtype = torch.float64 if float64 else torch.float32

    def __call__(self, log_probabilities: Float[Tensor, "positions vocab"]) -> Int[Tensor, "positions"]:
        """Draw a token for each position; random numbers are used in the order of the positions.

        Raises:
            ValueError: If a log-probability is NaN.
        """
        at_once = max(1, ENTRIES_AT_ONCE // log_probabilities.shape[1])
        return torch.cat([self._draw(some) for some in log_probabilities.split(at_once)])

    def _draw(self, log_probabilities: Tensor) -> Tensor:
        mask = torch.tensor([self._mask_token_id], device=log_probabilities.device)
        scores = log_probabilities.to(self._dtype).index_fill(1, mask, -math.inf)
        if self._top_p < 1:
            scores = keep_nucleus(scores, self._top_p)
        if self._temperature > 0:
            uniform = self.uniforms(*scores.shape, dtype=self._dtype)
            uniform = uniform.clamp(min=torch.finfo(self._dtype).tiny)  # u = 0 gives -inf, even to the only token
            scores = scores.sub(uniform.log_().neg_().log_(), alpha=self._temperature)
        best, tokens = scores.max(dim=1)
        if best.isnan().any():
            raise ValueError("the network's log-probabilities are not numbers (NaN); run it in bfloat16 or float32")
        return tokens


def keep_nucleus(log_probabilities: Float[Tensor, "positions vocab"], top_p: float) -> Float[Tensor, "positions vocab"]:
    """Return log-probabilities, with -inf outside the smallest set of most probable tokens that sums to `top_p`."""
    ordered, order = log_probabilities.sort(dim=1, descending=True, stable=True)
    p = ordered.double().softmax(dim=1)
    beyond = p.cumsum(dim=1) - p >= top_p  # sums only the tokens before, so the first is always kept
    return log_probabilities.masked_fill(beyond.scatter(1, order, beyond), -math.inf)
