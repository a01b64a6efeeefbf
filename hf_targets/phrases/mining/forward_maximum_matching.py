"""Phrases that are frequent in a support corpus, and as long as possible (forward maximum matching, FMM)."""

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from hf_targets.data.progress import progress
from hf_targets.maths.trie import TokenTrie
from hf_targets.phrases.mining.miner import MINERS, MiningTask
from hf_targets.phrases.mining.run_counts import BREAK, Counts, TokenRuns, frequent_runs
from hf_targets.phrases.mining.tokenized_text import TokenizedText


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
        tokens = joined_tokens(corpus, excluded_ids)
        runs = TokenRuns(tokens, int(tokens.max(initial=0)) + 1)

        def count(table: np.ndarray | None) -> list[Counts]:
            if table is not None:
                runs.extend(table)
            return [runs.counts()]

        return cls.from_counts(count, min_count=min_count, max_tokens=max_tokens, width=runs.width)

    @classmethod
    def from_counts(
        cls, count: Callable[[np.ndarray | None], Iterable[Counts]], *, min_count: int, max_tokens: int, width: int
    ) -> "ForwardMaximumMatching":
        """Return the table that `mine` makes of a corpus, whose shards are counted anywhere.

        Args:
            count, width: As for `frequent_runs`; a shard is the `joined_tokens` of its texts.
        """
        if min_count < 1 or max_tokens < 2:
            raise ValueError(f"min_count must be at least 1, and max_tokens 2, got {min_count} and {max_tokens}")
        levels = []
        with progress(max_tokens - 1, "mining phrases", unit="length") as bar:
            for level in frequent_runs(count, min_count=min_count, max_tokens=max_tokens, width=width):
                levels.append(level)
                bar.update()
        if not levels:
            raise ValueError(f"no two tokens follow each other {min_count} times; lower min_count or give more text")
        saved = np.concatenate([counts * (runs.shape[1] - 1) for runs, counts in levels])
        phrases = [run for runs, _ in levels for run in runs.tolist()]
        return cls(phrases[number] for number in np.argsort(-saved, kind="stable").tolist())

    @classmethod
    def for_task(cls, task: MiningTask) -> "ForwardMaximumMatching":
        """Return a table of the phrases that stand often enough in the texts."""
        mined = {"max_tokens": task.max_tokens, "excluded_ids": task.excluded_ids}
        return cls.mine(task.rows(), min_count=task.min_count, **mined)

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the matches, (matches, 2) tokens [start, end); a special token is in none."""
        ids = text.ids
        if not text.special_ids.isdisjoint(ids):
            ids = [BREAK if id_ in text.special_ids else id_ for id_ in ids]
        return np.array(list(self._trie.longest_matches(ids)), np.int64).reshape(-1, 2)


def joined_tokens(
    corpus: Iterable[TokenizedText] | Iterable[Sequence[int]], excluded_ids: Collection[int] = ()
) -> np.ndarray:
    """Return the token ids of texts, (time,), with `BREAK` after each text and in place of ids that no phrase holds."""
    pieces = [np.zeros(0, np.int32)]
    for text in corpus:
        ids, special = (text.ids, text.special_ids) if isinstance(text, TokenizedText) else (text, ())
        tokens = np.append(np.asarray(ids, np.int32), np.int32(BREAK))
        if tokens[:-1].min(initial=0) < 0:
            raise ValueError(f"token ids must be 0 or more, got {tokens[:-1].min()}; drop padding such as -100")
        if special or excluded_ids:
            tokens[np.isin(tokens, [*special, *excluded_ids])] = BREAK
        pieces.append(tokens)
    return np.concatenate(pieces)


MINERS.register("fmm", ForwardMaximumMatching)
