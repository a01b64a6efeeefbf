"""What is asked of a sampler, checked once."""

from dataclasses import dataclass
from typing import Literal

SamplerName = Literal["ancestral", "cached", "first_hitting", "confidence", "entropy_bound"]

OPTIONS: dict[str, tuple[str, ...]] = {
    "ancestral": ("num_steps",),
    "cached": ("num_steps",),
    "first_hitting": ("tokens_per_step",),
    "confidence": ("num_steps", "tokens_per_step"),
    "entropy_bound": ("entropy_bound",),
}
"""The options that each sampler takes."""


@dataclass(frozen=True)
class SamplerSettings:
    """A sampler and its options.

    Attributes:
        num_steps: Steps in time; None takes as many as the row with the most masked tokens has.
        tokens_per_step: Tokens of a row unmasked by one evaluation of it; None: 1, or what num_steps says.
        entropy_bound: In nats, 0 or more.
    Raises:
        ValueError: If a value is out of range, or an option is not one of this sampler.
    """

    sampler: SamplerName | str = "cached"
    num_steps: int | None = None
    tokens_per_step: int | None = None
    entropy_bound: float | None = None

    def __post_init__(self) -> None:
        if self.sampler not in OPTIONS:
            raise ValueError(f"sampler must be one of {', '.join(OPTIONS)}, got {self.sampler!r}")
        for name in ("num_steps", "tokens_per_step", "entropy_bound"):
            if getattr(self, name) is not None and name not in OPTIONS[self.sampler]:
                takers = " and ".join(sampler for sampler, options in OPTIONS.items() if name in options)
                raise ValueError(
                    f"{name} is an option of {takers}, got {getattr(self, name)} with sampler={self.sampler!r}; leave "
                    "it out, or take another sampler"
                )
        for name in ("num_steps", "tokens_per_step"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be an integer, 1 or more, got {value}; leave it out for the default")
        if self.num_steps is not None and self.tokens_per_step is not None:
            raise ValueError(
                "num_steps and tokens_per_step both say how many tokens a step unmasks, got "
                f"{self.num_steps} and {self.tokens_per_step}; leave out one of them"
            )
        if self.sampler == "entropy_bound":
            if self.entropy_bound is None:
                raise ValueError(
                    "sampler='entropy_bound' needs entropy_bound, in nats: 0 unmasks a token at a time, more unmasks "
                    "several; try 0.1"
                )
            if not self.entropy_bound >= 0:
                raise ValueError(
                    f"entropy_bound is in nats and must be 0 or more, got {self.entropy_bound}; 0 unmasks a token at a "
                    "time"
                )
