"""Phrases that become available while a text is generated: by a schedule, or as they are added to a vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary

PhraseCount = Callable[[int, int], int]
"""Maps the number of tokens generated so far, with phrases expanded, and the number of phrases to how many phrases are
available."""


@dataclass(frozen=True)
class PhraseSchedule:
    """A schedule that makes more phrases available after every `every` tokens, in the order of their ids.

    Args:
        initial: The share of the phrases that is available from the beginning, in [0, 1].
        added: The share that is added each time, in [0, 1].
        every: The number of generated tokens between two additions, 1 or more. A phrase counts as its tokens.
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
                raise ValueError(f"{name} must be a share of the phrases in [0, 1], got {getattr(self, name)}")
        if self.every < 1:
            raise ValueError(f"every must be a number of tokens, 1 or more, got {self.every}")

    def __call__(self, num_tokens: int, num_phrases: int) -> int:
        """Return how many of `num_phrases` phrases are available after `num_tokens` generated tokens."""
        # Rounded to thousandths of a phrase before rounding up: in floats, (.1 + .2) * 10 is a little more than 3.
        share = min(1.0, self.initial + self.added * (num_tokens // self.every))
        return min(num_phrases, int(-(-round(share * num_phrases * 1000) // 1000)))


@dataclass(frozen=True, eq=False)
class PhraseFeed:
    """A vocabulary that may grow while texts are written with it: `model.generate(..., phrases=feed)`.

    Add phrases to `feed.vocabulary` from any thread, with any of its methods. The next step encodes them and may
    generate them. Do not remove phrases that a text being written has.

    >>> feed = PhraseFeed(vocabulary)  # doctest: +SKIP
    >>> Thread(target=lambda: vocabulary.add_documents(retrieve_more(), miner)).start()  # doctest: +SKIP
    >>> ids = model.generate(**inputs, phrases=feed)  # doctest: +SKIP

    Args:
        vocabulary: For all rows of a batch.
        max_per_step: How many new phrases a step encodes at most, so that it is not long; later steps encode the rest.
    Source: Liu et al., "Generation with Dynamic Vocabulary", appendix D.
    """

    vocabulary: PhraseVocabulary
    max_per_step: int = 2048

    def schedule(self) -> PhraseCount:
        """Return the schedule of one text."""
        available = 0

        def count(num_tokens: int, num_phrases: int) -> int:
            nonlocal available
            available = min(num_phrases, available + self.max_per_step)
            return available

        return count


def checked_count(schedule: PhraseCount, num_tokens: int, num_phrases: int) -> int:
    """Return how many phrases a schedule makes available after so many tokens."""
    count = schedule(num_tokens, num_phrases)
    if not isinstance(count, Integral) or not 0 <= count <= num_phrases:
        raise ValueError(
            f"a phrase schedule must return a whole number of phrases in [0, {num_phrases}], got {count!r} after "
            f"{num_tokens} tokens"
        )
    return int(count)
