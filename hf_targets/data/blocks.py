"""Texts packed into blocks of token ids that together predict every token once, with the words each block predicts."""

from collections.abc import Mapping
from itertools import chain
from typing import cast

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_targets.data.offsets import encode
from hf_targets.data.token_rows import NUM_WORDS, ROWS_AT_ONCE, check_fills_a_block, rows_of, text_batches
from hf_targets.data.words import owners, word_starts
from hf_targets.maths.losses import IGNORED


def pack_blocks(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, *, line_ends: bool = True
) -> Dataset:
    r"""Return the tokens of `texts`, row after row, as blocks that each begin with the last token of the one before.

    The labels of a block are its ids, and its first one is never predicted (a model shifts the labels itself), so the
    stride `block_size - 1` makes every token but the very first a target exactly once. Padding, on the right of the
    last block alone, has attention mask 0 and label -100.

    `num_words` is how many words begin in the block's targets, so that perplexity per word is exp(summed loss / summed
    words): words between white space and line ends, as is the convention of word-level perplexities. Their sum is the
    same for every tokenizer, that of the whole text but for its first word, which nothing predicts. A word begins in
    the first token to end after its first character.

    Args:
        texts: A data set with a column `text`; rows are tokenized one by one, without special tokens.
        tokenizer: A fast tokenizer. Padding has its `pad_token_id`, else its `eos_token_id`, else 0.
        block_size: Tokens in a block, at least 2.
        line_ends: Whether each line end is a word.

    Returns:
        `input_ids`, `attention_mask` and `labels` (each `block_size` integers) and `num_words` (an integer).

    Raises:
        ValueError: If `block_size` is below 2 or above the number of tokens, or a word's position is not known because
            the tokenizer is not a fast one.

    >>> from hf_targets.data.tokenization import word_level_tokenizer
    >>> texts = Dataset.from_dict({"text": ["the cat\n", "the dog\n"]})
    >>> blocks = pack_blocks(texts, word_level_tokenizer(texts["text"]), block_size=4)
    >>> blocks["input_ids"][:]
    [[1, 2, 0, 1], [1, 3, 0, 5]]
    >>> blocks["labels"][:]
    [[1, 2, 0, 1], [1, 3, 0, -100]]
    >>> blocks["num_words"][:]
    [3, 2]
    """
    if block_size < 2:
        raise ValueError(f"block_size must be at least 2, one token to read and one to predict, got {block_size}")
    ids, words = _ids_and_words(texts, tokenizer, line_ends)
    check_fills_a_block(len(ids), block_size)
    pad_id = next((id_ for id_ in (tokenizer.pad_token_id, tokenizer.eos_token_id) if isinstance(id_, int)), 0)
    stride = block_size - 1
    num_blocks = -(-(len(ids) - 1) // stride)
    padding = (0, num_blocks * stride + 1 - len(ids))

    def blocks(stream: np.ndarray, fill: int) -> np.ndarray:
        padded = np.pad(stream, padding, constant_values=fill)
        return np.lib.stride_tricks.sliding_window_view(padded, block_size)[::stride]

    columns = {
        "input_ids": blocks(ids, pad_id),
        "attention_mask": blocks(np.ones_like(ids), 0),
        "labels": blocks(ids, IGNORED),
        NUM_WORDS: np.pad(words, padding)[1:].reshape(num_blocks, stride).sum(axis=1),
    }
    return rows_of(columns)


def check_token_ids(dataset: Dataset, vocab_sizes: Mapping[str, int]) -> None:
    """Check that a model has embeddings for the ids in columns of a data set.

    Args:
        vocab_sizes: How many there are for each column, `input_ids` or `labels`; others may be missing.
    Raises:
        ValueError: If an id is negative, other than a label of -100, or as large as the number or larger.
    """
    columns = [name for name in vocab_sizes if name in dataset.column_names]
    for rows in dataset.select_columns(columns).with_format("numpy").iter(ROWS_AT_ONCE):
        for name, lists in cast(dict[str, np.ndarray], rows).items():
            ids, vocab_size = np.concatenate(lists), vocab_sizes[name]
            if name == "labels":
                ids = ids[ids != IGNORED]
            lowest, highest = ids.min(initial=0), ids.max(initial=-1)
            if lowest < 0:
                raise ValueError(
                    f"{name} must be token ids in [0, {vocab_size - 1}], got {lowest}; padding belongs in labels alone"
                )
            if highest >= vocab_size:
                raise ValueError(
                    f"{name} must be token ids in [0, {vocab_size - 1}] for a model with vocab_size={vocab_size}, got "
                    f"{highest}, which takes at least {highest + 1}; use the model's own tokenizer, or "
                    f"resize_token_embeddings"
                )


def has_token(dataset: Dataset, column: str, token_id: int) -> bool:
    """Return whether any row of a column of lists holds a token."""
    batches = dataset.select_columns([column]).with_format("numpy").iter(ROWS_AT_ONCE)
    return any((np.concatenate(cast(dict[str, np.ndarray], rows)[column]) == token_id).any() for rows in batches)


def _ids_and_words(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, line_ends: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the id of each token, and how many words but the text's first begin in it; none in the first token."""
    empty = np.zeros(0, np.int64)
    ids, ends, starts = [empty], [empty], [empty]
    num_characters = 0
    for batch in text_batches(texts, tokenizer):
        batch_ids, offsets = encode(batch, tokenizer)
        row_starts = np.cumsum([0] + [len(text) for text in batch])[:-1]
        row_ends = np.fromiter((end for row in offsets for _, end in row), np.int64)
        ids.append(np.fromiter(chain.from_iterable(batch_ids), np.int64))
        ends.append(num_characters + row_ends + np.repeat(row_starts, list(map(len, batch_ids))))
        starts.append(num_characters + word_starts(batch, line_ends=line_ends))
        num_characters += sum(map(len, batch))

    tokens, words = np.concatenate(ids), empty
    if len(tokens) > 1:
        positions = owners(np.concatenate(starts)[1:], np.concatenate(ends)).clip(min=1)
        words = np.bincount(positions, minlength=len(tokens))
    return tokens, words
