"""Pairs of texts as rows of token ids, for a model with an encoder and a decoder."""

import logging
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from hf_targets.data.pair_columns import pair_batches
from hf_targets.data.token_rows import rows_of

logger = logging.getLogger(__name__)

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

    >>> from hf_targets.data.joint_bpe import train_joint_bpe
    >>> pairs = Dataset.from_dict({"source": ["ab"], "target": ["ab ab"]})
    >>> encode_pairs(pairs, train_joint_bpe(pairs, vocab_size=261))[0]
    {'input_ids': [259, 1], 'attention_mask': [1, 1], 'labels': [259, 260, 1]}
    """
    limits = {"source": _limit(max_source_length, tokenizer), "target": _limit(max_target_length, tokenizer)}
    longer: dict[str, list[int]] = {"source": [], "target": []}

    def encoded(side: str, texts: list[str]) -> Any:
        call: dict[str, Any] = {"text" if side == "source" else "text_target": texts, "return_attention_mask": True}
        rows = tokenizer(**call, verbose=False)
        limit = limits[side]
        beyond = [] if limit is None else [len(row) for row in rows["input_ids"] if len(row) > limit]
        longer[side] += beyond
        if not beyond or not truncate:
            return rows
        return tokenizer(**call, truncation=True, max_length=limit)

    parts = []
    for sources, targets in pair_batches(pairs):
        inputs = encoded("source", [(source_prefix or "") + text for text in sources])
        labels = encoded("target", targets)["input_ids"]
        if not parts:
            _check_end(labels[0], tokenizer)
        parts.append(rows_of({**{name: inputs[name] for name in ("input_ids", "attention_mask")}, "labels": labels}))
    if not parts:
        raise ValueError("pairs must have a row, got none; give a longer text")
    for side, lengths in longer.items():
        if lengths and not truncate:
            raise ValueError(
                f"a {side} must have at most {limits[side]} tokens, and {len(lengths)} of {len(pairs)} have more, up "
                f"to {max(lengths)}; remove them with filter_pairs, raise max_{side}_length if the model has the "
                f"positions, or cut them with truncate=True"
            )
        if lengths:
            logger.info(f"{len(lengths):,} of {len(pairs):,} {side}s are cut to {limits[side]} tokens")
    return concatenate_datasets(parts)


def pair_lengths(encoded: Dataset) -> np.ndarray:
    """Return the tokens of the longer side of each pair, (pairs,), from `input_ids` and `labels`."""
    return np.maximum(*side_lengths(encoded))


def side_lengths(encoded: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the source and of the target of each pair, (pairs,), from `input_ids` and `labels`."""
    table = cast(pa.Table, encoded.select_columns(["input_ids", "labels"]).with_format("arrow")[:])
    source, target = (
        pc.call_function("list_value_length", [table[side]]).to_numpy() for side in ("input_ids", "labels")
    )
    return source, target


def _limit(asked: int | None, tokenizer: PreTrainedTokenizerBase) -> int | None:
    if asked is not None and asked < 2:
        raise ValueError(f"a length limit must be at least 2, a token and the end of the text, got {asked}")
    known = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    return known if asked is None else asked


def _check_end(labels: list[int], tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id not in labels:
        raise ValueError(
            f"a model learns to stop only if targets end with the tokenizer's eos_token, and "
            f"{type(tokenizer).__name__} does not add its {tokenizer.eos_token!r}; take the tokenizer of an "
            f"encoder-decoder, or train_joint_bpe"
        )
