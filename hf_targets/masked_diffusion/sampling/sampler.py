"""What a sampler is: a frozen dataclass of its options, whose `fill` decides which masked tokens are unmasked when."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.masked_diffusion.sampling.window import Window
from hf_targets.maths.noise import NoiseSchedule


@dataclass(frozen=True)
class Sampler(ABC):
    """A way to fill a window; its fields are its options, checked when it is made."""

    @abstractmethod
    def fill(self, window: Window, draw: TokenDraw, schedule: NoiseSchedule) -> None:
        """Fill all that is masked in a window.

        Args:
            window: Asked for the network's distributions, and told what is filled.
            draw: Draws tokens from distributions, and numbers from [0, 1).
            schedule: How fast tokens are masked.
        """


def check_count(name: str, value: int | None) -> None:
    """Raise a ValueError if an option that counts something is given and no integer of 1 or more."""
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} must be an integer, 1 or more, got {value}; leave it out for the default")
