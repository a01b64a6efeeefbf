"""Phrases that are frequent in a support corpus, and as long as possible (forward maximum matching, FMM)."""

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from hf_targets.data.progress import progress
from hf_targets.maths.trie import TokenTrie
from hf_targets.phrases.mining.miner import MINERS, MiningTask
from hf_targets.phrases.mining.tokenized_text import TokenizedText

_BREAK = -1  # in place of a token that no phrase holds


class ForwardMaximumMatching:
    """The longest phrase of a table at each position of a text, from left to right, without overlap.

    Args:
        phrases: Token ids of each phrase, 2 or more; a phrase given twice counts once.

    Source: Liu et al. 2024, section 2.4, after Lan et al. 2023.
    Departs: phrases are of tokens, not of words, so that the table needs no tokenizer; they may begin inside a word.
        Where no phrase begins we move on by one token; the program of Lan et al. moves on by two words.

    >>> matching = ForwardMaximumMatching([(1, 2), (1, 2, 3), (3, 4)])
    >>> matching.spans(TokenizedText("a b c d a b", [1, 2, 3, 4, 1, 2], np.zeros((6, 2), int))).tolist()
    [[0, 3], [4, 6]]
    """

    def __init__(self, phrases: Iterable[Sequence[int]]) -> None:
        self.phrases: list[tuple[int, ...]] = list(dict.fromkeys(tuple(map(int, phrase)) for phrase in phrases))
        if not self.phrases or min(map(len, self.phrases)) < 2:
            raise ValueError("a table needs phrases, each of 2 token ids or more")
        self._trie = TokenTrie(self.phrases)

    def __len__(self) -> int:
        return len(self.phrases)

    @classmethod
    def mine(
        cls,
        corpus: Iterable[TokenizedText] | Iterable[Sequence[int]],
        *,
        min_count: int = 10,
        max_tokens: int = 16,
        excluded_ids: Collection[int] = (),
    ) -> "ForwardMaximumMatching":
        """Return the table of all runs of 2 to `max_tokens` tokens that occur `min_count` times in a corpus, or more.

        A run of n tokens is counted where both runs of n - 1 tokens in it are frequent, by sorting integers that stand
        for them exactly.

        Args:
            corpus: Texts, or their token ids; no phrase crosses from one to the next, or holds a special token.
            min_count: Occurrences in the whole corpus, overlapping ones included, at least 1.
            excluded_ids: Ids that no phrase may hold either, such as those of line ends or punctuation.

        Returns: First the phrases that would save the most steps, count * (tokens - 1); of equals the shorter, then
            those of lower ids.
        Raises:
            ValueError: If a number is out of range, an id is negative, or no phrase is that frequent.
        """
        if min_count < 1 or max_tokens < 2:
            raise ValueError(f"min_count must be at least 1, and max_tokens 2, got {min_count} and {max_tokens}")
        tokens = _joined(corpus, excluded_ids)
        levels = []
        with progress(max_tokens - 1, "mining phrases", unit="length") as bar:
            for level in _frequent_runs(tokens, min_count, max_tokens):
                levels.append(level)
                bar.update()
        if not levels:
            raise ValueError(f"no two tokens follow each other {min_count} times; lower min_count or give more text")
        sizes = np.repeat(np.arange(2, 2 + len(levels)), [len(starts) for starts, _ in levels])
        starts = np.concatenate([starts for starts, _ in levels])
        saved = np.concatenate([counts for _, counts in levels]) * (sizes - 1)
        best = np.argsort(-saved, kind="stable")
        return cls(tokens[start : start + size].tolist() for start, size in zip(starts[best], sizes[best], strict=True))

    @classmethod
    def for_task(cls, task: MiningTask) -> "ForwardMaximumMatching":
        """Return a table of the phrases that stand often enough in the texts."""
        mined = {"max_tokens": task.max_tokens, "excluded_ids": task.excluded_ids}
        return cls.mine(task.rows(), min_count=task.min_count, **mined)

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the matches, (matches, 2) tokens [start, end); a special token is in none."""
        ids = text.ids
        if not text.special_ids.isdisjoint(ids):
            ids = [_BREAK if id_ in text.special_ids else id_ for id_ in ids]
        return np.array(list(self._trie.longest_matches(ids)), np.int64).reshape(-1, 2)


def _joined(corpus: Iterable[TokenizedText] | Iterable[Sequence[int]], excluded_ids: Collection[int]) -> np.ndarray:
    pieces = [np.zeros(0, np.int32)]
    for text in corpus:
        ids, special = (text.ids, text.special_ids) if isinstance(text, TokenizedText) else (text, ())
        tokens = np.append(np.asarray(ids, np.int32), np.int32(_BREAK))
        if tokens[:-1].min(initial=0) < 0:
            raise ValueError(f"token ids must be 0 or more, got {tokens[:-1].min()}; drop padding such as -100")
        if special or excluded_ids:
            tokens[np.isin(tokens, [*special, *excluded_ids])] = _BREAK
        pieces.append(tokens)
    return np.concatenate(pieces)


def _frequent_runs(tokens: np.ndarray, min_count: int, max_tokens: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for 2, 3, ... tokens a position of each frequent run, in the order of its ids, and its count."""
    width = int(tokens.max(initial=0)) + 1
    is_frequent = np.bincount(tokens[tokens != _BREAK], minlength=width) >= min_count
    positions = np.flatnonzero((tokens != _BREAK) & is_frequent[tokens])
    # an integer for the run of tokens at each position, ascending with its ids
    runs = tokens[positions].astype(np.int64)
    for size in range(2, max_tokens + 1):
        extended = np.flatnonzero(positions[1:] == positions[:-1] + 1)
        positions = positions[extended]
        runs = runs[extended] * width + tokens[positions + size - 1]
        order = np.argsort(runs)
        ordered = runs[order]
        firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
        counts = np.diff(np.append(firsts, len(ordered)))
        keep = counts >= min_count
        if not keep.any():
            return
        yield positions[order[firsts[keep]]], counts[keep]
        number = np.where(keep, np.cumsum(keep) - 1, -1)
        runs[order] = np.repeat(number, counts)
        positions, runs = positions[runs >= 0], runs[runs >= 0]


MINERS.register("fmm", ForwardMaximumMatching)
