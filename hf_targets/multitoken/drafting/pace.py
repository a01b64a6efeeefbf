"""How far to draft at each pass: always as told, or as far as has paid in the passes measured so far."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from threading import Lock
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import nn

from hf_targets.multitoken.drafting.drafts import DraftSettings

_TRIES = 3
"""Passes that a way is given before it is judged, after one that is not timed."""
_REMEMBERED = 24
"""Passes of each way that are remembered."""
_LEAST_SPREAD = 0.25
"""Tokens; a few passes that brought the same do not mean that all will."""
_SHARE_FOR_TRIES = 0.01
"""Of all seconds; so much may be lost by trying ways other than the best."""
_PASSES_FOR_TRIES = 2
"""So much may be lost beyond that share, so that the first text tries drafts at once."""


@dataclass(frozen=True)
class Outcome:
    """What a pass took and brought.

    Attributes:
        settings: Of its draft.
        seconds: Of the pass, drafting included.
        tokens: By how many the batch came nearer to its end.
        as_chain: The same if only the chain in a tree had been drafted; None: it was no tree.
        confidences: Of a chain, for each length, the probability of all tokens so far by the heads; mean over the rows.
        accepted: Of a chain, for each length, the share of the rows that accepted all tokens so far.
    """

    settings: DraftSettings
    seconds: float
    tokens: float
    as_chain: float | None = None
    confidences: Sequence[float] = ()
    accepted: Sequence[float] = ()


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

    def least_confidences(self, num_rows: int) -> list[float] | None:
        """Return for each length of a chain the confidence that it must have; None: chains have full length."""
        ...

    def record(self, num_rows: int, outcome: Outcome) -> None:
        """Take in a pass over so many rows."""
        ...


class FixedPace:
    """Drafts as far as told."""

    def __init__(self, settings: DraftSettings) -> None:
        self.most, self.now = settings, perf_counter

    def choose(self, num_rows: int) -> DraftSettings:
        """Return the settings."""
        return self.most

    def least_confidences(self, num_rows: int) -> None:
        """Return None: a chain is always continued."""

    def record(self, num_rows: int, outcome: Outcome) -> None:
        """Forget the pass."""


class _Way:
    """A way to take a pass, and what its last passes took and brought.

    Attributes:
        since: Passes that were taken in other ways.
    """

    def __init__(self, settings: DraftSettings) -> None:
        self.settings = settings
        self.seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self.tokens: deque[float] = deque(maxlen=_REMEMBERED)
        self.chains: deque[Outcome] = deque(maxlen=_REMEMBERED)
        self.since, self._warm = 0, False

    @property
    def rate(self) -> float:
        """Tokens a second and row; the median keeps a pause of the machine out."""
        return sum(self.tokens) / len(self.tokens) / max(median(self.seconds), 1e-9) if self.tokens else 0.0

    @property
    def hope(self) -> float:
        """The rate if passes bring two standard errors more tokens than those remembered did."""
        count = len(self.tokens)
        if count < _TRIES:
            return inf
        mean = sum(self.tokens) / count
        variance = max(sum((tokens - mean) ** 2 for tokens in self.tokens) / count, _LEAST_SPREAD**2)
        return self.rate * (1 + 2 * (variance / count) ** 0.5 / mean)

    def seconds_lost(self, best_rate: float) -> float:
        """Return by how many seconds a pass is slower than the best way, by what is remembered."""
        if not self.tokens:
            return 0.0
        return max(median(self.seconds) - sum(self.tokens) / len(self.tokens) / best_rate, 0.0)

    def record(self, outcome: Outcome) -> None:
        """Take in a pass, but for the very first, which prepares much."""
        self.since = 0
        if self._warm:
            self.seconds.append(outcome.seconds)
            self.tokens.append(outcome.tokens)
            self.chains.append(outcome)
        self._warm = True

    def forget(self) -> None:
        """Remember nothing, so that there is hope again."""
        for memory in (self.seconds, self.tokens, self.chains):
            memory.clear()

    def least_confidences(self, plain: float, rate: float) -> list[float]:
        """Return for each length of a chain the confidence at which its last token gains just what its time is worth.

        Half of what a whole chain takes longer than a pass without drafts counts as the time of its tokens, the rest as
        that of drafting at all. Heads that are surer than right, or less sure, are corrected by the share of chains
        that was accepted. Where no chain of a length is remembered, the confidence is 0.

        Args:
            plain: The seconds of a pass without drafts.
            rate: The tokens of a second.
        """
        length = self.settings.num_tokens
        whole = [chain.seconds for chain in self.chains if len(chain.confidences) == length]
        of_a_token = 0.5 * max(median(whole) - plain, 0.0) / length if whole else 0.0
        return [of_a_token * rate / self._correction(number) if whole else 0.0 for number in range(length)]

    def _correction(self, number: int) -> float:
        """Return how many times as often chains up to this token are accepted as the heads say."""
        known = [chain for chain in self.chains if len(chain.confidences) > number]
        told = sum(chain.confidences[number] for chain in known)
        return max(sum(chain.accepted[number] for chain in known), 1e-9) / told if told else inf


class _Choice:
    """The ways to decode a certain number of rows: without drafts, in chains, in trees."""

    def __init__(self, most: DraftSettings) -> None:
        self.plain = _Way(replace(most, num_tokens=0, num_branches=1))
        self.chain = _Way(replace(most, num_branches=1))
        self.ways = [self.plain, self.chain]
        self._tree = _Way(most) if most.num_branches > 1 else None
        self._seconds, self._lost = 0.0, 0.0

    def next(self) -> _Way:
        """Return the way of the next pass: another than the best where it has hope and its loss can be borne."""
        if len(self.plain.seconds) < _TRIES:
            return self.plain
        best = self.best()
        if self._tree is not None and best is self.chain and best.hope < inf:
            self.ways.append(self._tree)
            self._tree = None
        bearable = _PASSES_FOR_TRIES * median(best.seconds) + _SHARE_FOR_TRIES * self._seconds - self._lost
        for way in self.ways:
            loss = way.seconds_lost(best.rate)
            if way is best or loss > bearable:
                continue
            if way.hope <= best.rate and _TRIES * loss <= bearable:
                way.forget()
            if way.hope == inf or (way.hope > best.rate and way.since > 1):
                return way
        return best

    def best(self) -> _Way:
        """Return the way with the most tokens a second."""
        return max(self.ways, key=lambda way: way.rate)

    def record(self, outcome: Outcome) -> None:
        """Take in a pass; one of a tree is one more sample of what chains bring in this part of the text."""
        for way in self.ways:
            way.since += 1
        if outcome.as_chain is not None and self.chain.seconds:
            self.chain.tokens.append(outcome.as_chain)
        way = next(way for way in self.ways if way.settings == outcome.settings)
        way.record(outcome)
        if way.seconds:
            self._seconds += median(way.seconds)  # in which a pause of the machine does not count
            best = self.best()
            if way is not best:
                self._lost += way.seconds_lost(best.rate)

    def record_plain(self, passes: int, seconds: float) -> None:
        """Take in the passes of a text without drafts, and the mean seconds of a pass."""
        self.plain.forget()
        for _ in range(_TRIES):
            self.plain.record(Outcome(self.plain.settings, seconds, 1.0))
        for way in self.ways:
            way.since += 0 if way is self.plain else passes
        self._seconds += passes * seconds


class MeasuredPace:
    """Takes each pass in the way that has brought the most tokens a second, and tries the other ways now and then.

    The ways are a pass without drafts, a chain and a tree; trees are tried where chains are best. A slower way is tried
    at every third pass as long as two standard errors of what it brought leave hope, and afresh later, as other text
    may be easier. But tries lose at most 1% of the time and two passes, by what passes of each way take and bring.
    Where a text would begin without drafts, all of it is decoded by Transformers' own loop, which takes a little less
    time. Rows are told apart by the binary digits of their number, as a pass over more rows takes longer. Several
    threads may use it at once.

    Args:
        most: The longest and widest draft.
        now: A clock in seconds.
    """

    def __init__(self, most: DraftSettings, now: Callable[[], float] = perf_counter) -> None:
        self.most, self.now = most, now
        self._choices: dict[int, _Choice] = {}
        self._lock = Lock()

    def _of(self, num_rows: int) -> _Choice:
        size = num_rows.bit_length()
        if size not in self._choices:
            self._choices[size] = _Choice(self.most)
        return self._choices[size]

    def choose(self, num_rows: int) -> DraftSettings:
        """Return the settings of the next pass over so many rows."""
        with self._lock:
            return self._of(num_rows).next().settings

    def least_confidences(self, num_rows: int) -> list[float]:
        """Return for each length of a chain the confidence at which its last token gains what its time is worth."""
        with self._lock:
            choice = self._of(num_rows)
            if not choice.plain.seconds:
                return [0.0] * self.most.num_tokens
            return choice.chain.least_confidences(median(choice.plain.seconds), choice.best().rate)

    def record(self, num_rows: int, outcome: Outcome) -> None:
        """Take in a pass over so many rows."""
        with self._lock:
            self._of(num_rows).record(outcome)

    def begins_plain(self, num_rows: int) -> bool:
        """Return whether a new text is to be decoded without drafts; `record_plain` then takes in its passes."""
        with self._lock:
            choice = self._of(num_rows)
            return bool(choice.chain.seconds) and choice.best() is choice.next() is choice.plain

    def record_plain(self, num_rows: int, passes: int, seconds: float) -> None:
        """Take in the passes of a text that began without drafts, and the mean seconds of a pass."""
        with self._lock:
            self._of(num_rows).record_plain(passes, seconds)


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
