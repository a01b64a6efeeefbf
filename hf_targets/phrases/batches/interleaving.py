"""The choice of the spans of a text that become phrases."""

from typing import NamedTuple

import numpy as np
import torch

from hf_targets.phrases.batches.entries import MIN_PHRASE_TOKENS, Phrase


class PhrasedText(NamedTuple):
    """A text in static tokens, and the spans [start, end) of tokens that are phrases, in order and disjoint."""

    tokens: Phrase
    spans: list[tuple[int, int]]

    @property
    def phrases(self) -> list[Phrase]:
        """The phrase of each span."""
        return [self.tokens[start:end] for start, end in self.spans]

    def pieces(self) -> list[tuple[int, int]]:
        """Return the span [start, end) of static tokens at each position of the interleaved sequence.

        >>> PhrasedText((5, 6, 7, 8), [(1, 3)]).pieces()
        [(0, 1), (1, 3), (3, 4)]
        """
        pieces, done = [], 0
        for start, end in [*self.spans, (len(self.tokens), len(self.tokens))]:
            pieces += [(position, position + 1) for position in range(done, start)]
            pieces += [(start, end)] if start < end else []
            done = end
        return pieces


def choose_spans(
    candidates: np.ndarray, *, min_gap: int, phrase_rate: float, generator: torch.Generator | None = None
) -> list[tuple[int, int]]:
    """Return the candidates that become phrases, chosen from left to right.

    At each position where candidates start, one of them becomes a phrase with probability `phrase_rate`; all that start
    there are equally likely. The next `min_gap` tokens after a phrase stay plain. If candidates start at every token,
    the gap between two phrases is `min_gap` plus a geometric number of tokens, with the mean (1 - rate) / rate. The
    first token of a text is never in a phrase, since no position predicts it.

    Args:
        candidates: (spans, 2), spans [start, end) of tokens, sorted and distinct.
        min_gap: The smallest number of plain tokens between two phrases.
        phrase_rate: A probability, in [0, 1].
        generator: Makes the choice; None: torch's global one.
    Source: Liu et al. 2024, section 2.4: random sequences of words, at least five tokens apart. It gives no rate.
    """
    starts, firsts, counts = np.unique(candidates[:, 0], return_index=True, return_counts=True)
    takes, picks = torch.rand(2, len(starts), generator=generator).numpy()
    ends = candidates[firsts + (picks.astype(float) * counts).astype(int), 1]
    chosen, free_from = [], 1
    for start, end, take in zip(starts.tolist(), ends.tolist(), takes.tolist(), strict=True):
        if start >= free_from and take < phrase_rate:
            chosen.append((start, end))
            free_from = end + min_gap
    return chosen


def usable_spans(candidates: np.ndarray, barred: np.ndarray, max_tokens: int | None) -> np.ndarray:
    """Return the candidates with at most `max_tokens` tokens and without barred tokens.

    Args:
        candidates: (spans, 2), the spans [start, end) of tokens that a miner found.
        barred: (tokens,), true at tokens that must not be in a phrase.
        max_tokens: None: no limit.
    Raises:
        ValueError: If the candidates are not sorted spans of at least two tokens inside the text.
    """
    if candidates.ndim != 2 or candidates.shape[1] != 2:
        raise ValueError(f"a miner's spans must have the shape (spans, 2), got {candidates.shape}")
    starts, ends = candidates[:, 0], candidates[:, 1]
    lengths = ends - starts
    is_wrong = (starts < 0) | (ends > len(barred)) | (lengths < MIN_PHRASE_TOKENS)
    is_wrong[1:] |= (starts[1:] < starts[:-1]) | ((starts[1:] == starts[:-1]) & (ends[1:] <= ends[:-1]))
    if is_wrong.any():
        raise ValueError(
            f"a miner's spans [start, end) must be sorted and distinct, have at least {MIN_PHRASE_TOKENS} tokens and "
            f"lie in the text of {len(barred)} tokens, got {candidates[is_wrong][0].tolist()}; correct the miner"
        )
    num_barred = np.concatenate([[0], np.cumsum(barred)])
    keep = num_barred[ends] == num_barred[starts]
    if max_tokens is not None:
        keep &= lengths <= max_tokens
    return candidates[keep]
