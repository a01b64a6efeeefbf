"""The base class of samplers, a frozen dataclass of options, and what their orders are made of."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.masked_diffusion.sampling.canvas import Window
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.maths.noise import NoiseSchedule
from hf_targets.registry import Registry


@dataclass(frozen=True)
class Sampler(ABC):
    """A way to fill a window. Its fields are its options, which are checked when it is created."""

    @abstractmethod
    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all masked positions of a window.

        Args:
            window: Evaluates the network with `log_probabilities`, and stores tokens with `fill`.
            draw: Draws tokens from distributions, and uniform numbers in [0, 1) with `uniforms`.
            schedule: The noise schedule: how fast tokens are masked.
        """


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", Sampler)
"""The samplers by the name that `generate` takes; `SAMPLERS.register("mine", Mine)` adds one."""


def check_count(name: str, value: int | None) -> None:
    """Raise a ValueError if an option is neither None nor an integer of 1 or more."""
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} must be an integer, 1 or more, got {value}; leave it out for the default")


def keys_of(masked: Bool[Tensor, "batch length"], values: Float[Tensor, "positions"]) -> Float[Tensor, "batch length"]:
    """Return a value for each masked position, given row by row, finite in float64; inf at all others."""
    keys = torch.full(masked.shape, torch.inf, dtype=torch.float64, device=masked.device)
    keys[masked] = values.double().clamp(max=1e300)
    return keys


def rank(keys: Float[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the rank of each key in its row, from 0 for the smallest; of equal keys the left one ranks first."""
    return keys.argsort(dim=1, stable=True).argsort(dim=1)
