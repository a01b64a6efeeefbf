"""How tokens are drawn: the Gumbel trick in float64, temperature, nuclei, and where the random numbers come from."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

ENTRIES_AT_ONCE = 2**22
"""Places times vocabulary drawn at once: float64 noise for all masked tokens of a batch would be gigabytes."""


class Uniforms:
    """Uniform numbers in [0, 1) from one generator, on a device that need not be the generator's.

    Raises:
        ValueError: If the generator is on neither a CPU nor this device.
    """

    def __init__(self, generator: torch.Generator | None, device: torch.device) -> None:
        if generator is not None and generator.device.type not in ("cpu", device.type):
            raise ValueError(
                f"generator must be on the CPU or on the model's device, {device}, got one on {generator.device}; make "
                f"it with torch.Generator({device.type!r})"
            )
        self._generator = generator
        self._device = device

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the next numbers, in this shape."""
        source = self._device if self._generator is None else self._generator.device
        return torch.rand(shape, dtype=dtype, generator=self._generator, device=source).to(self._device)


class TokenDraw:
    """Draws tokens from a network's distributions p, with p^(1 / temperature) in place of p.

    The token drawn is argmax_v log p(v) + temperature * g_v with g_v = -log(-log(u_v)), u_v uniform: a sample by the
    Gumbel trick. Float32 has no u within 6e-8 of 1, which cuts off the largest g and so lowers the temperature.

    Args:
        uniforms: The random numbers; none are used at temperature 0.
        mask_token_id: Never drawn.
        temperature: 0 takes the most probable token.
        top_p: Draws only among the most probable tokens, as few as reach this probability together; 1 and None: all.
        float64: Whether to draw in float64; False: in float32, as published samples were.
    Raises:
        ValueError: If a value is out of range.
    Source: Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic Masked Models and Exploit Inaccurate
        Categorical Sampling": what float32 does.
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
        if not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
            raise ValueError(
                f"temperature must be a number, 0 or more, got {temperature}; 0 takes the most probable token, 1 the "
                "network's distribution"
            )
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p is a probability and must be in (0, 1], got {top_p}; None or 1 keeps all tokens")
        self.uniforms = uniforms
        self._mask_token_id = mask_token_id
        self._temperature = temperature
        self._top_p = 1.0 if top_p is None else top_p
        self._dtype = torch.float64 if float64 else torch.float32

    def __call__(self, log_probabilities: Float[Tensor, "positions vocab"]) -> Int[Tensor, "positions"]:
        """Draw a token for each position, with random numbers taken in the order of the positions.

        Raises:
            ValueError: If the network gives what is not a number.
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
            uniform = uniform.clamp(min=torch.finfo(self._dtype).tiny)  # at 0 even the only token would have -inf
            scores = scores.sub(uniform.log_().neg_().log_(), alpha=self._temperature)
        best, tokens = scores.max(dim=1)
        if best.isnan().any():
            raise ValueError("the network's log-probabilities are not numbers (NaN); run it in bfloat16 or float32")
        return tokens


def keep_nucleus(log_probabilities: Float[Tensor, "positions vocab"], top_p: float) -> Float[Tensor, "positions vocab"]:
    """Return log-probabilities with -inf at all but the most probable tokens, as few as have `top_p` together."""
    ordered, order = log_probabilities.sort(dim=1, descending=True, stable=True)
    p = ordered.double().softmax(dim=1)
    beyond = p.cumsum(dim=1) - p >= top_p  # of the tokens before: the first stays always
    return log_probabilities.masked_fill(beyond.scatter(1, order, beyond), -math.inf)
