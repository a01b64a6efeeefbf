"""How far `draft_tokens="auto"` drafts: as long as the heads' own confidence says that the next token pays."""

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from statistics import median
from time import perf_counter

TRIES = 3
"""Passes of each kind that are timed, after one that is not."""
MOST_LOST = 2.0
"""Passes without drafts whose time a call may lose to drafts before it stops drafting."""


class AutoLength:
    """The lengths of the chains in one call of `generate`.

    A pass without drafts costs 1 and brings each row one token. A pass with a chain of k tokens costs 1 + c; c is
    measured once under the same conditions, in the first passes of a call, and kept. A chain of n tokens is counted as
    c (1 + n / k) / 2: half of c for drafting at all, the rest for its tokens.

    - A chain ends before the token that brings less than it costs: if P, the probability that it and all tokens before
      it are right, is below c / (2 k) times the tokens that this call has brought for each cost of 1. P is what the
      heads say, corrected by how often they were right in this call.
    - The call stops drafting when drafts have lost 2 passes since they last gained: tokens gained less their cost. A
      batch ends with its last row, so that the shortest row's tokens count for two thirds, and the mean for the rest.

    Args:
        num_tokens: k, the most tokens of a chain.
        costs: c by conditions, kept by the model.
        conditions: On which c depends.
        clock: In seconds.
    """

    def __init__(
        self,
        num_tokens: int,
        costs: MutableMapping[Hashable, float],
        conditions: Hashable,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.num_tokens = num_tokens
        self._costs, self._conditions, self._clock = costs, conditions, clock
        self._seconds: tuple[list[float], list[float]] = [], []  # of passes without drafts, and with whole chains
        self._began = 0.0
        self._balance, self._tokens, self._cost = 0.0, 1.0, 1.0
        self._told, self._right = [1.0] * num_tokens, [1.0] * num_tokens
        self.stopped = costs.get(conditions, 0.0) >= num_tokens

    def next_length(self) -> int:
        """Return the most tokens that the next pass may draft."""
        self._began = self._clock()
        if self.stopped or (self._conditions not in self._costs and len(self._seconds[0]) <= TRIES):
            return 0
        return self.num_tokens

    def least_confidences(self) -> list[float]:
        """Return for each length of a chain the confidence that it must have to get there."""
        cost = self._costs.get(self._conditions, 0.0) / (2 * self.num_tokens)
        rate = max(self._tokens / self._cost, 1.0)
        return [cost * rate * told / right for told, right in zip(self._told, self._right, strict=True)]

    def record(
        self, length: int, gained: float, confidences: Sequence[float], accepted: Sequence[float], *, whole: bool
    ) -> None:
        """Take in the last pass.

        Args:
            length: Tokens of its draft.
            gained: Tokens by which the batch came nearer to its end, beyond the 1 of a pass without drafts.
            confidences: For each length, the probability by the heads that all tokens so far are right, the mean over
                the rows.
            accepted: For each length, the share of the rows that accepted all tokens so far.
            whole: Whether the pass was as long as asked for, over all rows, so that its time counts.
        """
        if self._conditions not in self._costs:
            if whole:
                self._seconds[length > 0].append(self._clock() - self._began)
            if len(self._seconds[1]) > TRIES:
                plain, chain = (median(seconds[1:]) for seconds in self._seconds)
                self._costs[self._conditions] = max(chain / max(plain, 1e-9) - 1, 0.0)
            return
        if self.stopped:
            return
        for number, (told, right) in enumerate(zip(confidences, accepted, strict=False)):
            self._told[number] += told
            self._right[number] += right
        cost = self._costs[self._conditions] * (1 + length / self.num_tokens) / 2
        self._tokens, self._cost = self._tokens + 1 + gained, self._cost + 1 + cost
        self._balance = min(self._balance + gained - cost, 0.0)
        self.stopped = self._balance < -MOST_LOST
