"""Vocabularies that grow while a text is generated."""

from collections.abc import Callable
from dataclasses import dataclass

PhraseCount = Callable[[int, int], int]
"""From the tokens generated so far, phrases expanded, and the number of phrases to how many of them are there."""


@dataclass(frozen=True)
class PhraseSchedule:
    """Adds a share of the phrases, in the order of their ids, every so many tokens.

    Args:
        initial: Share of the phrases that is there from the beginning, in [0, 1].
        added: Share added each time, in [0, 1].
        every: Generated tokens between, 1 or more; a phrase counts as the tokens that it stands for.
    Raises:
        ValueError: If one of them is out of its range.
    Source: Liu et al., "Generation with Dynamic Vocabulary", appendix D: 5% every 10 tokens.

    >>> schedule = PhraseSchedule(initial=0.7)
    >>> [schedule(num_tokens, 200) for num_tokens in (0, 9, 10, 25, 1000)]
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
            raise ValueError(f"every counts tokens and must be an integer, 1 or more, got {self.every}")

    def __call__(self, num_tokens: int, num_phrases: int) -> int:
        """Return how many of the phrases are there after `num_tokens` generated tokens."""
        # rounded up in thousandths of a phrase: .7 + .05 is a little more than .75
        share = min(1.0, self.initial + self.added * (num_tokens // self.every))
        return min(num_phrases, int(-(-round(share * num_phrases * 1000) // 1000)))
