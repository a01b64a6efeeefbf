"""How far to draft at each pass: always as told, or as far as has paid in the passes measured so far."""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from statistics import fmean, median
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import nn

from hf_targets.multitoken.drafting.drafts import DraftSettings

FIRST_TRIES = 2
"""Passes that each way of drafting is given before any is preferred."""
_FIRST_WAIT, _LONGEST_WAIT = 16, 1024
_HOPELESS = 0.8
"""Trees are not tried where chains bring less than this share of plain decoding's tokens a second."""


class Pace(Protocol):
    """Decides how far the next pass drafts, and is told what it brought.

    Attributes:
        most: The longest and widest draft it may ask for.
        now: Reads a clock, in seconds.
    """

    most: DraftSettings
    now: Callable[[], float]

    def choose(self, num_rows: int) -> DraftSettings:
        """Return the settings of the next pass over so many rows; `num_tokens` is 0 for a pass without drafts."""
        ...

    def least_confidence(self, num_rows: int) -> float:
        """Return the probability that all tokens of a chain are accepted below which it is not continued."""
        ...

    def record(self, num_rows: int, settings: DraftSettings, seconds: float, drafted: int, tokens: float) -> None:
        """Take in a pass: its seconds, drafting included, the length of its draft, and its new tokens a row."""
        ...


class FixedPace:
    """Drafts as far as told."""

    def __init__(self, settings: DraftSettings) -> None:
        self.most, self.now = settings, perf_counter

    def choose(self, num_rows: int) -> DraftSettings:
        """Return the settings."""
        return self.most

    def least_confidence(self, num_rows: int) -> float:
        """Return 0: a chain is always continued."""
        return 0.0

    def record(self, num_rows: int, settings: DraftSettings, seconds: float, drafted: int, tokens: float) -> None:
        """Forget the pass."""


class _Way:
    """A way to take a pass, and what its last passes brought.

    Attributes:
        wait: Passes without it after which it is tried once more; twice as many after each try in vain.
    """

    def __init__(self, settings: DraftSettings) -> None:
        self.settings = settings
        self.seconds: deque[float] = deque(maxlen=9)
        self.drafted: deque[int] = deque(maxlen=9)
        self.tokens: deque[float] = deque(maxlen=32)
        self.since, self.wait = 0, _FIRST_WAIT

    @property
    def rate(self) -> float:
        """Tokens a second and row; the median keeps a pause of the machine out."""
        return fmean(self.tokens) / max(median(self.seconds), 1e-9) if self.seconds else 0.0


class _Choice:
    """The ways to decode a certain number of rows: without drafts, in chains, in trees."""

    def __init__(self, most: DraftSettings) -> None:
        self.plain = _Way(replace(most, num_tokens=0, num_branches=1))
        self.chain = _Way(replace(most, num_branches=1))
        self.ways = [self.chain, self.plain]
        self._tree = _Way(most) if most.num_branches > 1 else None
        self.aside = 0

    def next(self) -> _Way:
        """Return the way of the next pass: one that is due to be tried, or else the best."""
        for way in self.ways:
            if len(way.seconds) < FIRST_TRIES:
                return way
        if self._tree is not None and self.chain.rate >= _HOPELESS * self.plain.rate:
            self.ways.append(self._tree)
            self._tree = None
            return self.ways[-1]
        best = self.best()
        return next((way for way in self.ways if way is not best and way.since >= way.wait), best)

    def best(self) -> _Way:
        """Return the way with the most tokens a second."""
        return max(self.ways, key=lambda way: way.rate)

    def record(self, settings: DraftSettings, seconds: float, drafted: int, tokens: float) -> None:
        """Take in a pass; a way that was tried in vain waits longer for its next try."""
        before = self.best()
        for way in self.ways:
            way.since += 1
            if way.settings == settings:
                way.seconds.append(seconds)
                way.drafted.append(drafted)
                way.tokens.append(tokens)
                way.since = 0
                if way is not before:
                    better = self.best() is way
                    way.wait = _FIRST_WAIT if better else min(2 * way.wait, _LONGEST_WAIT)


class MeasuredPace:
    """Takes each pass in the way that has brought the most tokens a second, and tries the other ways now and then.

    The ways are a pass without drafts, a chain and a tree. A way that is slower is tried again after 16 passes, then
    after twice as many each time, up to 1,024. Rows are told apart by the binary digits of their number, as a pass over
    more rows takes longer.

    Args:
        most: The longest and widest draft.
        now: A clock in seconds.
    """

    def __init__(self, most: DraftSettings, now: Callable[[], float] = perf_counter) -> None:
        self.most, self.now = most, now
        self._choices: dict[int, _Choice] = {}

    def _of(self, num_rows: int) -> _Choice:
        return self._choices.setdefault(num_rows.bit_length(), _Choice(self.most))

    def choose(self, num_rows: int) -> DraftSettings:
        """Return the settings of the next pass over so many rows."""
        return self._of(num_rows).next().settings

    def least_confidence(self, num_rows: int) -> float:
        """Return the share of a plain pass that one more drafted token costs, in tokens.

        A chain pays up to the token that is accepted with this probability: it costs as much time as it saves.
        """
        choice = self._of(num_rows)
        if not (choice.plain.seconds and choice.chain.seconds):
            return 0.0
        more = median(choice.chain.seconds) - median(choice.plain.seconds)
        return max(more, 0.0) / max(fmean(choice.chain.drafted), 1.0) * choice.best().rate

    def record(self, num_rows: int, settings: DraftSettings, seconds: float, drafted: int, tokens: float) -> None:
        """Take in a pass: its seconds, drafting included, the length of its draft, and its new tokens a row."""
        self._of(num_rows).record(settings, seconds, drafted, tokens)

    def steps_aside(self, num_rows: int) -> bool:
        """Return whether to generate a whole text without drafts, as they have not paid; every 16th text tries them."""
        choice = self._of(num_rows)
        known = all(len(way.seconds) >= FIRST_TRIES for way in choice.ways)
        if not known or choice.best() is not choice.plain:
            return False
        choice.aside = (choice.aside + 1) % _FIRST_WAIT
        if not choice.aside:
            for way in choice.ways:
                way.since = way.wait
        return bool(choice.aside)


_PACES: WeakKeyDictionary[nn.Module, dict[Hashable, MeasuredPace]] = WeakKeyDictionary()


def pace_of(model: nn.Module, key: Hashable, most: Callable[[], DraftSettings]) -> MeasuredPace:
    """Return the pace that a model has under these conditions, kept as long as the model.

    Args:
        key: The conditions that decide what a pass costs and brings.
        most: Called where they are new, for the longest and widest draft.
    """
    paces = _PACES.setdefault(model, {})
    if key not in paces:
        paces[key] = MeasuredPace(most())
    return paces[key]
