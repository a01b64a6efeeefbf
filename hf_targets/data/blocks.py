"""Texts packed into blocks of token ids: for causal models, and between special tokens for masked ones."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from hf_targets.data.token_rows import NUM_WORDS, ROWS_AT_ONCE, check_fills_a_block, rows_of, text_batches
from hf_targets.data.tokenization import encode
from hf_targets.data.words import owners, word_starts
from hf_targets.maths.losses import IGNORED

_Texts = TypeVar("_Texts", Dataset, IterableDataset)


def pack_blocks(
    texts: _Texts, tokenizer: PreTrainedTokenizerBase, block_size: int, *, line_ends: bool = True
) -> _Texts:
    r"""Return the tokens of `texts`, row after row, as blocks that each begin with the last token of the one before.

    The labels of a block are its ids, and its first one is never predicted (a model shifts the labels itself), so the
    stride `block_size - 1` makes every token but the very first a target exactly once. Padding, on the right of the
    last block alone, has attention mask 0 and label -100.

    `num_words` is how many words, between white space and line ends, begin in the block's targets, so that perplexity
    per word is exp(summed loss / summed words). Their sum is the same for every tokenizer. A word begins in the first
    token to end after its first character.

    Args:
        texts: A data set with a column `text`; rows are tokenized one by one, without special tokens. Of a stream each
            1,000 rows are packed when they are read, as a text of their own, so that it can go on from any block.
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
    make = partial(_packed, tokenizer=tokenizer, block_size=block_size, line_ends=line_ends)
    return (
        _made_when_read(texts, make) if isinstance(texts, IterableDataset) else rows_of(make(texts, least=block_size))
    )


def _made_when_read(texts: IterableDataset, make: Callable[[Dataset], dict[str, Any]]) -> IterableDataset:
    """Return a stream of the rows that are made of each `ROWS_AT_ONCE` texts."""
    given = {"batched": True, "batch_size": ROWS_AT_ONCE}
    columns = texts.column_names or list(next(iter(texts), {}))
    return texts.map(partial(_of_batch, make), remove_columns=columns, **given)


def _of_batch(make: Callable[[Dataset], dict[str, Any]], batch: dict[str, list]) -> dict[str, list]:
    return {name: [np.asarray(row).tolist() for row in rows] for name, rows in make(Dataset.from_dict(batch)).items()}


def _packed(
    texts: Dataset, *, tokenizer: PreTrainedTokenizerBase, block_size: int, line_ends: bool, least: int = 0
) -> dict[str, np.ndarray]:
    ids, words = _ids_and_words(texts, tokenizer, line_ends)
    check_fills_a_block(len(ids), least)
    pad_id = next((id_ for id_ in (tokenizer.pad_token_id, tokenizer.eos_token_id) if isinstance(id_, int)), 0)
    stride = block_size - 1
    num_blocks = -(-max(0, len(ids) - 1) // stride)
    padding = (0, num_blocks * stride + 1 - len(ids))

    def blocks(stream: np.ndarray, fill: int) -> np.ndarray:
        padded = np.pad(stream, padding, constant_values=fill)
        return np.lib.stride_tricks.sliding_window_view(padded, block_size)[::stride]

    if not num_blocks:
        return dict.fromkeys(("input_ids", "attention_mask", "labels", NUM_WORDS), np.zeros(0, np.int64))
    return {
        "input_ids": blocks(ids, pad_id),
        "attention_mask": blocks(np.ones_like(ids), 0),
        "labels": blocks(ids, IGNORED),
        NUM_WORDS: np.pad(words, padding)[1:].reshape(num_blocks, stride).sum(axis=1),
    }


def enclosed_blocks(texts: _Texts, tokenizer: PreTrainedTokenizerBase, block_size: int) -> _Texts:
    """Return the tokens of `texts`, row after row, in blocks that begin with `[CLS]` and end with `[SEP]`.

    Each token is in one block. The last block is shorter than the others, or as long.

    Args:
        texts: A data set with a column `text`; of a stream, each 1,000 rows are a text of their own.
        tokenizer: A fast tokenizer with `cls_token` and `sep_token`.
        block_size: Tokens in a block, at least 3.
    Returns: `input_ids`.
    Raises:
        ValueError: If the tokenizer lacks one of these tokens, the block is too small, or there is no text.

    >>> from hf_targets.data.tokenization import train_masking_tokenizer
    >>> texts = Dataset.from_dict({"text": ["abc", "de"]})
    >>> tokenizer = train_masking_tokenizer(texts["text"], vocab_size=261)
    >>> [tokenizer.decode(ids) for ids in enclosed_blocks(texts, tokenizer, block_size=5)["input_ids"]]
    ['[CLS]abc[SEP]', '[CLS]de[SEP]']
    """
    first, last, room = tokenizer.cls_token_id, tokenizer.sep_token_id, block_size - 2
    if first is None or last is None or room < 1:
        raise ValueError(f"a block is cls_token, text and sep_token, got the ids {first} and {last}, and {block_size=}")
    make = partial(_enclosed, tokenizer=tokenizer, ends=cast(tuple[int, int], (first, last)), room=room)
    return (
        _made_when_read(texts, make) if isinstance(texts, IterableDataset) else Dataset.from_dict(make(texts, least=1))
    )


def _enclosed(
    texts: Dataset, *, tokenizer: PreTrainedTokenizerBase, ends: tuple[int, int], room: int, least: int = 0
) -> dict[str, list[list[int]]]:
    rows = [encode(batch, tokenizer)[0] for batch in text_batches(texts)]
    ids = list(chain.from_iterable(chain.from_iterable(rows)))
    check_fills_a_block(len(ids), least)
    return {"input_ids": [[ends[0], *ids[start : start + room], ends[1]] for start in range(0, len(ids), room)]}


def check_token_ids(dataset: Dataset, vocab_sizes: Mapping[str, int]) -> None:
    """Raise a ValueError if a model has no embedding for an id in `input_ids` or `labels`, whose numbers are given."""
    columns = [name for name in vocab_sizes if name in dataset.column_names]
    for rows in dataset.select_columns(columns).with_format("numpy").iter(ROWS_AT_ONCE):
        for name, lists in cast(dict[str, np.ndarray], rows).items():
            ids, vocab_size = np.concatenate(lists), vocab_sizes[name]
            wrong = ids[((ids < 0) | (ids >= vocab_size)) & ((ids != IGNORED) | (name != "labels"))]
            if len(wrong):
                raise ValueError(
                    f"{name} must be token ids in [0, {vocab_size - 1}], got {wrong[0]}; use the model's own "
                    "tokenizer, or resize_token_embeddings; padding belongs in labels alone"
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
    for batch in text_batches(texts):
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
