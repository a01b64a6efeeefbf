"""Pairs left out of training, by their lengths."""

import logging
from collections import Counter

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_targets.data.pair_columns import pair_batches

logger = logging.getLogger(__name__)

REASONS = ("empty", "too short", "too long", "ratio")
"""Why a pair is left out, in the order in which they are asked: a pair counts once."""


def filter_pairs(
    pairs: Dataset,
    min_length: int = 1,
    max_length: int | None = 175,
    max_ratio: float | None = 1.5,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> tuple[Dataset, dict[str, int]]:
    """Return the pairs to train on, in their order, and how many are kept and left out for which reason.

    A pair is kept if both sides have `min_length` to `max_length` tokens, and the longer one has at most `max_ratio`
    times the tokens of the shorter one. The counts are logged in one line.

    Args:
        pairs: With the columns `source` and `target`.
        min_length: 1 or more; an empty side is always left out.
        max_length: fairseq keeps 175 words for IWSLT14, and 250 tokens for WMT. None: any length.
        max_ratio: 1 or more; fairseq's is 1.5. It removes good pairs of short texts. None: any ratio.
        tokenizer: Lengths are those of its tokens, without special ones. None: of words between white space.
    Returns: The counts are by `"kept"` and each of `REASONS`.
    Raises:
        ValueError: If a bound is out of range, a column is missing, or no pair is left.
    Source: clean-corpus-n.perl of Moses, as fairseq's prepare-iwslt14.sh (words) and prepare-wmt14en2de.sh (byte-pair
        tokens) call it.

    >>> pairs = Dataset.from_dict({"source": ["ein Hund", "ja", ""], "target": ["a dog", "yes it is so", "no"]})
    >>> kept, counts = filter_pairs(pairs)
    >>> kept["source"][:], counts
    (['ein Hund'], {'kept': 1, 'empty': 1, 'too short': 0, 'too long': 0, 'ratio': 1})
    """
    if min_length < 1 or (max_length is not None and max_length < min_length):
        raise ValueError(f"lengths must be 1 <= min_length <= max_length, got {min_length} and {max_length}")
    if max_ratio is not None and max_ratio < 1:
        raise ValueError(f"max_ratio must be at least 1, longer over shorter side, got {max_ratio}; use None for any")

    def reason(source: int, target: int) -> str:
        shorter, longer = sorted((source, target))
        if shorter < min_length:
            return "too short" if shorter else "empty"
        if max_length is not None and longer > max_length:
            return "too long"
        return "ratio" if max_ratio is not None and longer > max_ratio * shorter else "kept"

    reasons = []
    for sources, targets in pair_batches(pairs, missing=""):
        reasons += map(reason, _lengths(sources, tokenizer), _lengths(targets, tokenizer))
    found = Counter(reasons)
    counts = {name: found[name] for name in ("kept", *REASONS)}
    told = ", ".join(f"{counts[name]:,} {name}" for name in REASONS)
    logger.info(f"{counts['kept']:,} of {len(pairs):,} pairs are kept for training; left out: {told}")
    if not counts["kept"]:
        raise ValueError(f"some pairs must be left to train on, and of {len(pairs)} none is ({told}); widen the bounds")
    return pairs.select([row for row, why in enumerate(reasons) if why == "kept"]), counts


def _lengths(texts: list[str], tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    if tokenizer is None:
        return [len(text.split()) for text in texts]
    ids = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return [len(row) for row in ids]
