"""Pairs of texts as rows of token ids, for a model with an encoder and a decoder."""

import logging
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from hf_targets.data.pair_columns import check_pairs, pair_batches
from hf_targets.data.token_rows import rows_of, texts_of
from hf_targets.maths.losses import IGNORED

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
    source = _Side("source", max_source_length, tokenizer, truncate=truncate)
    target = _Side("target", max_target_length, tokenizer, truncate=truncate)
    parts = []
    for sources, targets in pair_batches(pairs):
        inputs = source.encoded([(source_prefix or "") + text for text in sources])
        labels = target.encoded(targets)["input_ids"]
        if not parts:
            _check_end(labels[0], tokenizer)
        parts.append(rows_of({**{name: inputs[name] for name in ("input_ids", "attention_mask")}, "labels": labels}))
    if not parts:
        raise ValueError("pairs must have a row, got none; give a longer text")
    for side in (source, target):
        side.tell(len(pairs), f"raise max_{side.name}_length if the model has the positions, ")
    return concatenate_datasets(parts)


def encode_sources(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_source_length: int | None = None,
    truncate: bool = False,
    source_prefix: str | None = None,
) -> Dataset:
    """Return the sources of pairs alone as `input_ids` and `attention_mask`, as `encode_pairs` does.

    Targets are not read.

    Raises:
        ValueError: If there are no pairs, a column is missing, or a source is longer than the limit and `truncate` is
            off.
    """
    source = _Side("source", max_source_length, tokenizer, truncate=truncate)
    parts = []
    check_pairs(pairs)
    for (sources,) in texts_of(pairs, "source", removable="pairs with filter_pairs"):
        inputs = source.encoded([(source_prefix or "") + text for text in sources])
        parts.append(rows_of({name: inputs[name] for name in ("input_ids", "attention_mask")}))
    if not parts:
        raise ValueError("pairs must have a row, got none; give a longer text")
    source.tell(len(pairs))
    return concatenate_datasets(parts)


class _Side:
    """The texts of one side of pairs, and how many of them are longer than they may be."""

    def __init__(self, name: str, limit: int | None, tokenizer: PreTrainedTokenizerBase, *, truncate: bool) -> None:
        if limit is not None and limit < 2:
            raise ValueError(f"a length limit must be at least 2, a token and the end of the text, got {limit}")
        known = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
        self.name, self.tokenizer, self.truncate = name, tokenizer, truncate
        self.limit = known if limit is None else limit
        self.longer: list[int] = []

    def encoded(self, texts: list[str]) -> Any:
        """Return what the tokenizer makes of some texts, cut if that is asked for."""
        call: dict[str, Any] = {"text" if self.name == "source" else "text_target": texts}
        rows = self.tokenizer(**call, return_attention_mask=True, verbose=False)
        beyond = [] if self.limit is None else [len(row) for row in rows["input_ids"] if len(row) > self.limit]
        self.longer += beyond
        if not beyond or not self.truncate:
            return rows
        return self.tokenizer(**call, return_attention_mask=True, truncation=True, max_length=self.limit)

    def tell(self, num_pairs: int, way_out: str = "") -> None:
        """Log how many texts are cut, or raise a ValueError if they are not.

        Args:
            way_out: What else to do, in the middle of the error.
        """
        if not self.longer:
            return
        if not self.truncate:
            raise ValueError(
                f"a {self.name} must have at most {self.limit} tokens, and {len(self.longer)} of {num_pairs} have "
                f"more, up to {max(self.longer)}; remove them with filter_pairs, {way_out}or cut them with "
                "truncate=True"
            )
        logger.info(f"{len(self.longer):,} of {num_pairs:,} {self.name}s are cut to {self.limit} tokens")


def pair_lengths(encoded: Dataset) -> np.ndarray:
    """Return the tokens of the longer side of each pair, (pairs,), from `input_ids` and, if there are any, `labels`."""
    if "labels" not in encoded.column_names:
        return np.fromiter(map(len, encoded["input_ids"]), np.int64, len(encoded))
    return np.maximum(*(_lengths(column) for column in _columns(encoded, "input_ids", "labels")))


def side_lengths(encoded: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the source and of the target of each pair, (pairs,), without padding.

    Padding has 0 in `attention_mask`, if there is such a column, and -100 in `labels`.
    """
    masked = "attention_mask" in encoded.column_names
    source, labels = _columns(encoded, "attention_mask" if masked else "input_ids", "labels")
    return _counts(source, other_than=0) if masked else _lengths(source), _counts(labels, other_than=IGNORED)


def _columns(encoded: Dataset, *names: str) -> list[pa.ChunkedArray]:
    table = cast(pa.Table, encoded.select_columns(list(names)).with_format("arrow")[:])
    return [table[name] for name in names]


def _lengths(lists: pa.ChunkedArray) -> np.ndarray:
    return pc.call_function("list_value_length", [lists]).to_numpy()


def _counts(lists: pa.ChunkedArray, other_than: int) -> np.ndarray:
    """Return how many values of each list are no `other_than`."""
    lengths = _lengths(lists)
    values = pc.call_function("list_flatten", [lists]).to_numpy()
    ends, counts = lengths.cumsum(), np.concatenate([[0], (values != other_than).cumsum()])
    return counts[ends] - counts[ends - lengths]


def _check_end(labels: list[int], tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id not in labels:
        raise ValueError(
            f"a model learns to stop only if targets end with the tokenizer's eos_token, and "
            f"{type(tokenizer).__name__} does not add its {tokenizer.eos_token!r}; take the tokenizer of an "
            f"encoder-decoder, or train_joint_bpe"
        )
