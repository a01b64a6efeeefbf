"""What `draft_tokens="auto"` drafts in each pass: tokens that were looked up, tokens of the heads, or nothing."""

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, thread_time

import torch

TRIES = 3
"""Timed passes of a kind that tell its cost, the last ones; its first pass is not timed."""
MOST_TRUST = 2.0
"""Passes without drafts whose time a kind may lose once it has paid; a new kind begins with it."""
SHARE = 0.0075
"""The share of all passes whose time a kind of drafts may lose for good, to find out whether it pays by now."""
CHEAP = 0.5
"""The cost of a chain of the heads up to which a tree is tried: where a few positions cost more, many cost too much."""
FIRST = 8
"""Passes that tell what a chain and a tree gain, before the better of them is taken."""
_OF_ANY_LENGTH = 3
"""Tokens that a draft costs as much as, whatever its length, beside its own."""


@dataclass
class _Kind:
    """A kind of drafts.

    Attributes:
        cost: c, the time of the longest draft beyond that of a pass without drafts, as a share of it; None: not known.
        costs: As the last passes that were timed tell it.
        is_new: Whether there was no pass yet that could be timed.
        trust: Passes that it may lose.
        gain: Tokens gained less their cost, mean over its last 16 passes or so.
        passes: That the gain is of.
    """

    cost: float | None = None
    costs: list[float] = field(default_factory=list)
    is_new: bool = True
    trust: float = MOST_TRUST
    gain: float = 0.0
    passes: int = 0


class AutoDrafts:
    """The choice among lookup, a chain or a tree of the heads, and no drafts, in all calls under the same conditions.

    A pass without drafts costs 1 and brings each row a token. One with k drafted tokens, the most, costs 1 + c, and one
    with n costs 1 + c (3 + n) / (3 + k). c is told by passes right after one without drafts, as a machine has slow
    moments: the median of the last 3 of them. The first ones alternate with passes without drafts.

    Each kind of drafts has a trust: it grows with the tokens that its drafts gain and by .75% of each pass, falls with
    what they cost, and is at most 2 passes, or c if that is more. A kind whose trust does not reach its cost is left
    out. So drafts that do not pay lose 2 passes once and .75% of the time then, and are taken again when they do.

    Where a chain of the heads is cheap a tree is tried too; each gets 8 passes, then the one that gains more is taken.

    A match in the text comes before the heads, and must bring what they would have: their mean gain counts as cost.
    With several rows, and where the heads draft a tree, they come first, and a match is drafted in the same pass.

    Nothing but c depends on a clock: under the same costs the same calls make the same choices.

    Args:
        num_tokens: The most tokens of a draft, by kind ("lookup", "heads", "tree"); a kind of none is never taken.
        device: Of the model; None: a CPU.

    Attributes:
        clock: In seconds; of a CPU that of the thread, which stands still while other programs run.
    """

    def __init__(self, num_tokens: dict[str, int], device: torch.device | None = None) -> None:
        self.num_tokens = num_tokens
        self.clock = thread_time if device is None or device.type == "cpu" else perf_counter
        self.kinds = {name: _Kind() for name in ("plain", *num_tokens)}
        self._began, self._plain = 0.0, None  # the time of a pass without drafts, if that was the last one

    def choose(self, *, found: int, several: bool = False) -> str:
        """Return what the next pass is to draft: a kind, or "plain" for nothing.

        Args:
            found: The length of a draft of tokens that were looked up; 0: there is no match.
            several: Whether there are several rows.
        """
        self._began = self.clock()
        of_heads = self._of_heads()
        order = (*of_heads, "lookup") if several or of_heads[:1] == ["tree"] else ("lookup", *of_heads)
        lengths = {**self.num_tokens, "lookup": found}
        able = [name for name in order if self.num_tokens.get(name) and lengths[name]]
        name = next((name for name in able if self._is_trusted(name, lengths[name])), "plain")
        return "plain" if self._plain is None and self.kinds[name].cost is None else name

    def record(self, name: str, length: int, gained: float, *, whole: bool) -> None:
        """Take in the last pass.

        Args:
            name: What it drafted.
            length: Tokens of its draft.
            gained: Tokens by which the batch came nearer to its end, beyond the 1 of a pass without drafts.
            whole: Whether the pass had all rows, so that its time counts.
        """
        kind, seconds = self.kinds[name], self.clock() - self._began
        if kind.cost is not None:
            net = gained - kind.cost * self._share(name, length)
            kind.passes += 1
            kind.gain += (net - kind.gain) / min(kind.passes, 16)
            if name == "lookup":
                net -= max([0.0, *(self.kinds[one].gain for one in self._of_heads()[:1] if self._is_trusted(one))])
            kind.trust += net
        if self._plain and whole and length and not kind.is_new:
            kind.costs = [*kind.costs, (seconds / self._plain - 1) / self._share(name, length)][-TRIES:]
            if len(kind.costs) == TRIES:
                kind.cost = max(median(kind.costs), 0.0)
        self._plain = seconds if name == "plain" and whole and not kind.is_new else None
        kind.is_new = kind.is_new and not (whole and (length or name == "plain"))
        for each in self.kinds.values():
            each.trust = min(each.trust + SHARE, max(MOST_TRUST, each.cost or 0.0))

    def _of_heads(self) -> list[str]:
        """Return the kinds that the heads draft, the one to take first."""
        kinds = [name for name in ("tree", "heads") if self.num_tokens.get(name)]
        if len(kinds) == 2:
            chain, tree = self.kinds["heads"], self.kinds["tree"]
            if chain.cost is None or chain.cost > CHEAP:
                return ["heads"]
            if tree.cost is not None:
                kinds.sort(key=lambda name: (min(self.kinds[name].passes, FIRST), -self.kinds[name].gain))
        return kinds

    def _share(self, name: str, length: int) -> float:
        """Return the share that a draft of this length has of the longest one's cost."""
        return (_OF_ANY_LENGTH + length) / (_OF_ANY_LENGTH + self.num_tokens[name])

    def _is_trusted(self, name: str, length: int | None = None) -> bool:
        """Return whether a kind may lose the cost of a draft of this length; None: of the longest."""
        kind, length = self.kinds[name], self.num_tokens[name] if length is None else length
        return kind.cost is None or kind.trust >= kind.cost * self._share(name, length)
