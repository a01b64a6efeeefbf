"""What `draft_tokens="auto"` drafts in each pass: tokens looked up in the text, tokens of the heads, or nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

TRIES = 3
"""Passes of each kind that are timed, after one that is not."""
MOST_TRUST = 2.0
"""Passes without drafts whose time a kind of drafts may lose once it has paid; a new kind begins with it."""
SHARE = 0.0075
"""The share of all passes whose time a kind of drafts may lose for good, to find out whether it pays by now."""


@dataclass
class _Kind:
    """A kind of drafts.

    Attributes:
        cost: c, the time of a whole draft beyond that of a pass without drafts, as a share of it; None: not known yet.
        seconds: Of the passes that were timed.
        trust: Passes that it may lose.
        gain: Tokens gained less their cost, mean over its last 16 passes or so.
    """

    cost: float | None = None
    seconds: list[float] = field(default_factory=list)
    trust: float = MOST_TRUST
    gain: float = 0.0


class AutoDrafts:
    """The choice among lookup, heads and no drafts, in all calls of a model under the same conditions.

    A pass without drafts costs 1 and brings each row a token. One with k drafted tokens costs 1 + c; c is measured
    once, in the first passes. A shorter draft of n tokens is counted as c (1 + n / k) / 2.

    Each kind of drafts has a trust: it grows with the tokens that its drafts gain and by .75% of each pass, falls with
    what they cost, and is 2 passes at most. A kind whose trust does not reach its cost is left out. So drafts that do
    not pay lose 2 passes once and .75% of the time then, and are taken again when they do.

    A match in the text comes before the heads, and must bring what they would have: their mean gain counts as cost.
    With several rows the heads come first, and rows that have a match draft it in the same pass.

    Nothing but c depends on a clock: the same calls make the same choices.

    Args:
        num_tokens: The most tokens of a draft, by kind; a kind of none is never taken.
        clock: In seconds.
    """

    def __init__(self, num_tokens: dict[str, int], clock: Callable[[], float] = perf_counter) -> None:
        self.num_tokens, self._clock = num_tokens, clock
        self.kinds = {name: _Kind() for name in ("plain", *num_tokens)}
        self._began = 0.0

    def choose(self, *, found: bool, several: bool = False) -> str:
        """Return what the next pass is to draft: "lookup", "heads", or "plain" for nothing.

        Args:
            found: Whether there is a match in the text.
            several: Whether there are several rows.
        """
        self._began = self._clock()
        if len(self.kinds["plain"].seconds) <= TRIES:
            return "plain"
        order = ("heads", "lookup") if several else ("lookup", "heads")
        able = [name for name in order if self.num_tokens.get(name) and (found or name != "lookup")]
        return next((name for name in able if self._is_trusted(name)), "plain")

    def record(self, name: str, length: int, gained: float, *, whole: bool) -> None:
        """Take in the last pass.

        Args:
            name: What it drafted.
            length: Tokens of its draft.
            gained: Tokens by which the batch came nearer to its end, beyond the 1 of a pass without drafts.
            whole: Whether the pass was as long as asked for, over all rows, so that its time counts.
        """
        kind = self.kinds[name]
        if name != "plain" and kind.cost is not None:
            net = gained - kind.cost * (1 + length / self.num_tokens[name]) / 2
            kind.gain += (net - kind.gain) / 16
            if name == "lookup" and self._is_trusted("heads"):
                net -= max(self.kinds["heads"].gain, 0.0)
            kind.trust += net
        elif whole and len(kind.seconds) <= TRIES:
            kind.seconds.append(self._clock() - self._began)
            if name != "plain" and len(kind.seconds) > TRIES:
                plain, drafted = (median(of.seconds[1:]) for of in (self.kinds["plain"], kind))
                kind.cost = max(drafted / max(plain, 1e-9) - 1, 0.0)
        for each in self.kinds.values():
            each.trust = min(each.trust + SHARE, MOST_TRUST)

    def _is_trusted(self, name: str) -> bool:
        kind = self.kinds[name]
        return kind.cost is None or kind.trust >= kind.cost
