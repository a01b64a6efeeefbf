"""Pairs of texts as rows of token ids, for a model with an encoder and a decoder; and which pairs to leave out."""

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from hf_targets.data.pairs import check_pairs
from hf_targets.data.token_rows import rows_of, texts_of

logger = logging.getLogger(__name__)

REASONS = ("empty", "too long", "ratio")
"""Why a pair is left out, in the order in which they are asked: a pair counts once."""

_NO_LIMIT = 10**9
"""Transformers' `model_max_length` is above this one where the tokenizer knows no limit."""


def encode_pairs(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    truncate: bool = False,
    source_prefix: str | None = None,
) -> Dataset:
    """Return pairs as `input_ids`, `attention_mask` and `labels`: rows of ids of their own lengths, without padding.

    Labels are what the tokenizer makes of `text_target`, so Marian's takes its second vocabulary, and those of mBART
    and NLLB the mark of `tgt_lang`; set their `src_lang` and `tgt_lang` first. `DataCollatorForSeq2Seq` pads the rows.

    Args:
        pairs: With the columns `source` and `target`.
        tokenizer: One that ends the target with its `eos_token`.
        max_source_length: Positions of the encoder, special tokens included. None: the tokenizer's `model_max_length`,
            if it has one.
        max_target_length: Positions of the decoder, likewise.
        truncate: Whether longer texts are cut, and counted in a log line.
        source_prefix: Put before each source, such as `"translate English to German: "` for T5.
    Raises:
        ValueError: If there are no pairs, a column is missing, a text is longer than its limit and `truncate` is off,
            or the tokenizer does not end targets.

    >>> from hf_targets.data.tokenization import train_joint_bpe
    >>> pairs = Dataset.from_dict({"source": ["ab"], "target": ["ab ab"]})
    >>> encode_pairs(pairs, train_joint_bpe(pairs, vocab_size=261))[0]
    {'input_ids': [259, 1], 'attention_mask': [1, 1], 'labels': [259, 260, 1]}
    """
    sources = encode_sources(
        pairs, tokenizer, max_source_length=max_source_length, truncate=truncate, source_prefix=source_prefix
    )
    encoded = _encoded(pairs, "target", tokenizer, max_target_length, truncate=truncate)
    targets = concatenate_datasets([rows_of({"labels": rows["input_ids"]}) for rows in encoded])
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id not in targets[0]["labels"]:
        raise ValueError(
            f"a model learns to stop only if targets end with the tokenizer's eos_token, and "
            f"{type(tokenizer).__name__} does not add its {tokenizer.eos_token!r}; take the tokenizer of an "
            f"encoder-decoder, or train_joint_bpe"
        )
    return concatenate_datasets([sources, targets], axis=1)


def encode_sources(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_source_length: int | None = None,
    truncate: bool = False,
    source_prefix: str | None = None,
) -> Dataset:
    """Return the sources of pairs alone as `input_ids` and `attention_mask`, as `encode_pairs` does."""
    check_pairs(pairs)
    encoded = _encoded(pairs, "source", tokenizer, max_source_length, truncate=truncate, prefix=source_prefix or "")
    columns = ("input_ids", "attention_mask")
    return concatenate_datasets([rows_of({name: rows[name] for name in columns}) for rows in encoded])


def filter_pairs(
    pairs: Dataset,
    max_length: int | None = 175,
    max_ratio: float | None = 1.5,
) -> tuple[Dataset, dict[str, int]]:
    """Return the pairs to train on, in their order, and how many are kept and left out for which reason.

    A pair is kept if both sides have 1 to `max_length` words between white space, and the longer one has at most
    `max_ratio` times the words of the shorter one. The counts are logged in one line.

    Args:
        pairs: With the columns `source` and `target`.
        max_length: fairseq keeps 175 for IWSLT14. None: any length.
        max_ratio: 1 or more; fairseq's is 1.5. It removes good pairs of short texts. None: any ratio.
    Returns: The counts are by `"kept"` and each of `REASONS`.
    Raises:
        ValueError: If a bound is out of range, a column is missing, or no pair is left.
    Source: clean-corpus-n.perl of Moses, as fairseq's prepare-iwslt14.sh calls it.

    >>> pairs = Dataset.from_dict({"source": ["ein Hund", "ja", ""], "target": ["a dog", "yes it is so", "no"]})
    >>> kept, counts = filter_pairs(pairs)
    >>> kept["source"][:], counts
    (['ein Hund'], {'kept': 1, 'empty': 1, 'too long': 0, 'ratio': 1})
    """
    longest = np.inf if max_length is None else max_length
    ratio = np.inf if max_ratio is None else max_ratio
    if longest < 1 or ratio < 1:
        raise ValueError(f"max_length and max_ratio must be 1 or more, got {max_length} and {max_ratio}")

    def reason(source: int, target: int) -> str:
        shorter, longer = sorted((source, target))
        if not shorter:
            return "empty"
        return "too long" if longer > longest else "ratio" if longer > ratio * shorter else "kept"

    check_pairs(pairs)
    reasons = []
    for sources, targets in texts_of(pairs, "source", "target", missing=""):
        reasons += (reason(*(len(side.split()) for side in pair)) for pair in zip(sources, targets, strict=True))
    found = Counter(reasons)
    counts = {name: found[name] for name in ("kept", *REASONS)}
    told = ", ".join(f"{counts[name]:,} {name}" for name in REASONS)
    logger.info(f"{counts['kept']:,} of {len(pairs):,} pairs are kept for training; left out: {told}")
    if not counts["kept"]:
        raise ValueError(f"some pairs must be left to train on, and of {len(pairs)} none is ({told}); widen the bounds")
    return pairs.select([row for row, why in enumerate(reasons) if why == "kept"]), counts


def pair_lengths(encoded: Dataset) -> np.ndarray:
    """Return the tokens of the longer side of each pair, (pairs,), from `input_ids` and, if there are any, `labels`."""
    columns = [name for name in ("input_ids", "labels") if name in encoded.column_names]
    table = cast(pa.Table, encoded.select_columns(columns).with_format("arrow")[:])
    return np.maximum.reduce([pc.call_function("list_value_length", [table[name]]).to_numpy() for name in columns])


def _encoded(
    pairs: Dataset,
    side: str,
    tokenizer: PreTrainedTokenizerBase,
    limit: int | None,
    *,
    truncate: bool,
    prefix: str = "",
) -> Iterator[Any]:
    """Yield what the tokenizer makes of the texts of a side, cut to a limit, or raise a ValueError at the end."""
    known = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    limit, longer = known if limit is None else limit, []
    for (texts,) in texts_of(pairs, side):
        call: Any = {"text" if side == "source" else "text_target": [prefix + text for text in texts]}
        rows: Any = tokenizer(**call, return_attention_mask=True, verbose=False)
        beyond = [] if limit is None else [len(row) for row in rows["input_ids"] if len(row) > limit]
        longer += beyond
        if beyond and truncate:
            rows = tokenizer(**call, return_attention_mask=True, truncation=True, max_length=limit)
        yield rows
    if longer and not truncate:
        raise ValueError(
            f"a {side} must have at most {limit} tokens, and {len(longer)} of {len(pairs)} have more, up to "
            f"{max(longer)}; remove them with filter_pairs, raise max_{side}_length if the model has the positions, or "
            "cut them with truncate=True"
        )
    if longer:
        logger.info(f"{len(longer):,} of {len(pairs):,} {side}s are cut to {limit} tokens")
