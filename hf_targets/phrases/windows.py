"""Windows to encode. A causal encoder embeds all prefixes of a window, so a phrase and its prefixes share a window."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

CPU_TOKENS, ACCELERATOR_TOKENS = 2**10, 2**14  # on a CPU the activations of larger batches leave the caches


@dataclass(frozen=True)
class WindowBatch:
    """Windows of the same length, and the phrases that they embed.

    Attributes:
        windows: (windows, length), token ids.
        phrase_windows: (phrases, 2): phrase k is the first `phrase_windows[k, 1]` tokens of window
            `phrase_windows[k, 0]`.
        phrases: (phrases,), the index of each phrase among all phrases given to `plan_windows`.
    """

    windows: np.ndarray
    phrase_windows: np.ndarray
    phrases: np.ndarray


def plan_windows(ids: np.ndarray, offsets: np.ndarray, *, max_tokens: int = CPU_TOKENS) -> Iterator[WindowBatch]:
    """Yield batches of windows that embed every phrase once. The windows of a batch have one length, without padding.

    In lexicographic order, a phrase comes directly before the phrases that it is a prefix of. So a phrase needs a
    window of its own only if it is not a prefix of the next phrase.

    Args:
        ids: The token ids of all phrases, one phrase after the other.
        offsets: (phrases + 1), the index in `ids` at which each phrase begins, and the length of `ids`.
        max_tokens: The largest number of tokens in a batch. A longer window is a batch of its own.

    >>> batches = list(plan_windows(np.array([5, 6, 5, 6, 7, 8, 9]), np.array([0, 2, 5, 7])))
    >>> [(batch.windows.tolist(), batch.phrase_windows.tolist(), batch.phrases.tolist()) for batch in batches]
    [([[8, 9]], [[0, 2]], [2]), ([[5, 6, 7]], [[0, 2], [0, 3]], [0, 1])]
    """
    big_endian = np.ascontiguousarray(ids, dtype=">i4")  # so that bytes sort in the order of token ids
    data, ends = big_endian.tobytes(), (np.asarray(offsets) * 4).tolist()
    keys = [data[start:end] for start, end in pairwise(ends)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    window_of = np.empty(len(keys), np.int64)  # the phrase whose tokens are the window
    for index in range(len(order) - 1, -1, -1):
        phrase = order[index]
        after = order[index + 1] if index + 1 < len(order) else None
        shares = after is not None and keys[after].startswith(keys[phrase])
        window_of[phrase] = window_of[after] if shares else phrase
    lengths = np.diff(offsets)
    by_window = np.argsort(window_of, kind="stable")
    longest, firsts = np.unique(window_of[by_window], return_index=True)
    members = np.split(by_window, firsts[1:])
    for length in np.unique(lengths[longest]):
        chosen = np.flatnonzero(lengths[longest] == length)
        for start in range(0, len(chosen), max(1, max_tokens // int(length))):
            group = chosen[start : start + max(1, max_tokens // int(length))]
            windows = np.asarray(ids)[np.asarray(offsets)[longest[group]][:, None] + np.arange(length)]
            phrases = np.concatenate([members[number] for number in group])
            rows = np.repeat(np.arange(len(group)), [len(members[number]) for number in group])
            yield WindowBatch(windows.astype(np.int64), np.stack([rows, lengths[phrases]], axis=1), phrases)
