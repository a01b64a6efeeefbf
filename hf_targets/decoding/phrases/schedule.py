"""Vocabularies that grow while a text is generated."""

from collections.abc import Callable
from dataclasses import dataclass

PhraseCount = Callable[[int, int], int]
"""From the steps generated so far and the number of a vocabulary's phrases to how many of them are there."""


@dataclass(frozen=True)
class PhraseSchedule:
    """Adds a share of the phrases, in the order of their ids, every so many steps.

    Args:
        initial: Share of the phrases that is there from the first step on, in [0, 1].
        added: Share added each time, in [0, 1].
        every: Steps between, 1 or more.
    Raises:
        ValueError: If one of them is out of its range.
    Source: Liu et al., "Generation with Dynamic Vocabulary", appendix D: 5% every 10 tokens.

    >>> schedule = PhraseSchedule(initial=0.7)
    >>> [schedule(step, 200) for step in (0, 9, 10, 25, 1000)]
    [140, 140, 150, 160, 200]
    """

    initial: float = 0.7
    added: float = 0.05
    every: int = 10

    def __post_init__(self) -> None:
        for name in ("initial", "added"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share of the phrases and must be in [0, 1], got {getattr(self, name)}")
        if type(self.every) is not int or self.every < 1:
            raise ValueError(f"every counts steps and must be an integer, 1 or more, got {self.every}")

    def __call__(self, step: int, num_phrases: int) -> int:
        """Return how many of the phrases are there after `step` steps."""
        # rounded up in thousandths of a phrase: .7 + .05 is a little more than .75
        share = min(1.0, self.initial + self.added * (step // self.every))
        return min(num_phrases, int(-(-round(share * num_phrases * 1000) // 1000)))
