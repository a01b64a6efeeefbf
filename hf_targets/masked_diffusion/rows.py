"""Texts as rows for masked diffusion: a sentence a row, or blocks of running text; each token is a target in place."""

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import compress, islice
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from hf_targets.data.token_rows import (
    NUM_WORDS,
    ROWS_AT_ONCE,
    check_fills_a_block,
    check_words,
    has_value,
    rows_of,
    text_batches,
)
from hf_targets.data.tokenization import encode
from hf_targets.data.words import owners, word_starts
from hf_targets.maths.losses import IGNORED

LengthProtocol = Literal["predicted", "published", "conditional"]
"""How the padding of a row counts; `sentence_rows` tells them apart."""

NUM_TOKENS, MAY_MASK, TIMES_COLUMN = "num_tokens", "may_mask", "timesteps"
"""Columns: the tokens of text in a row with padding that is predicted, where a row may be masked, and when it was."""

Columns = tuple[str, ...]
"""Those of `NUM_TOKENS` and `MAY_MASK` that a row has, which differ by `length_protocol`."""


def mask_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the tokenizer's mask token.

    Raises:
        ValueError: If it has none.
    """
    if tokenizer.mask_token_id is None:
        raise ValueError(
            f"a model needs a mask token, and this {type(tokenizer).__name__} has none; call add_missing_tokens"
        )
    return cast(int, tokenizer.mask_token_id)


def add_missing_tokens(tokenizer: PreTrainedTokenizerBase, *, padding: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer, with a mask token if it had none, and if asked for with a padding token of its own.

    Tokens that it has keep their ids, and new ones follow: GPT-2's, for one, has neither.
    """
    if tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    if padding and tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    return tokenizer


def sentence_rows(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    length_protocol: LengthProtocol | str = "predicted",
    *,
    line_ends: bool = True,
) -> Dataset:
    r"""Return each row of `texts` as a row of a data set: a begin token, the row's tokens, an end token, and padding.

    The begin token is the tokenizer's BOS, else CLS, else there is none; the end token is its EOS, else SEP. The end
    token stands for the newlines at the end of the row; blank rows are left out. What does not fit into `max_length`
    is cut off before the end token. Special tokens written out in the text are ordinary text, so that no clean text
    holds a mask.

    The length of a sentence is information too. Perplexities compare only under the same `length_protocol`:

    | protocol      | padding                                       | a perplexity                                    |
    |---------------|-----------------------------------------------|-------------------------------------------------|
    | `predicted`   | is text: masked and predicted, to max_length  | bounds that of the text and its length          |
    | `published`   | is masked to max_length, its loss not counted | is no bound; compares with published LM1B ones  |
    | `conditional` | is hidden from the model                      | bounds that of the text, given its length       |

    Only a model of `predicted` rows chooses the length of what it generates: a canvas of `max_length` comes out with
    padding at its end. All three divide by the tokens of text in an evaluation, padding excluded.

    `num_words` counts the words that begin in the row, between white space and line ends, as `pack_blocks` does; the
    end token is one line end or more. The sum is the same for every tokenizer where no row is cut.

    Args:
        texts: A data set with a column `text`, such as `load_corpus` gives, a sentence a row.
        tokenizer: A fast tokenizer with an EOS or SEP token, and a padding token of its own unless `conditional`.
        max_length: Tokens in a row, with the begin and end tokens; of a `conditional` one at most.
        line_ends: Whether each line end is a word.
    Returns:
        `input_ids`, `attention_mask` (ones), `labels` (the ids) and `num_words`. `predicted` rows also have
        `num_tokens`, the tokens of text. `published` rows have labels of -100 at padding, and `may_mask` (ones).
    Raises:
        ValueError: If `max_length` has no room for a token of text, no row has one, the tokenizer will not do, or there
            is no such protocol.
    Source: Sahoo et al. 2024: `published` is what its program does on LM1B.
    Departs: by default padding is predicted as text, so that a perplexity bounds that of text and length together.

    >>> from hf_targets.data.tokenization import train_bpe_tokenizer
    >>> tokenizer = train_bpe_tokenizer(["the cat\n"] * 9, vocab_size=264)
    >>> rows = sentence_rows(Dataset.from_dict({"text": ["the cat\n", "\n", "a cat\n"]}), tokenizer, max_length=6)
    >>> tokenizer.batch_decode(rows["input_ids"][:])
    ['<|endoftext|>the cat<|endoftext|><|pad|><|pad|>', '<|endoftext|>a cat<|endoftext|><|pad|><|pad|>']
    >>> rows["num_tokens"][:], rows["num_words"][:]
    ([4, 4], [3, 3])
    """
    begin, end = _begin_and_end(tokenizer)
    room = _room(max_length, "max_length", begin)
    pad = _pad_id(tokenizer, end, length_protocol)
    parts, found = [], _ids_and_words(texts, tokenizer, line_ends)
    while rows := list(islice(found, ROWS_AT_ONCE)):  # Python's lists of all rows would take ten times the memory
        text = [[*begin, *row[:room].tolist(), end] for row, _, _ in rows]
        ids = text if pad is None else [_padded(row, max_length, pad) for row in text]
        columns = {
            "input_ids": ids,
            "attention_mask": [[1] * len(row) for row in ids],
            "labels": ids,
            NUM_WORDS: [int(words[:room].sum()) + at_end for _, words, at_end in rows],
        }
        if length_protocol == "predicted":
            columns[NUM_TOKENS] = [len(row) for row in text]
        elif length_protocol == "published":
            columns[MAY_MASK] = columns["attention_mask"]
            columns["labels"] = [_padded(row, max_length, IGNORED) for row in text]
        parts.append(rows_of(columns))
    if not parts:
        raise ValueError("texts must have a row that is not blank, got none; give a longer text")
    return concatenate_datasets(parts)


def wrapped_blocks(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, *, line_ends: bool = True
) -> Dataset:
    r"""Return the tokens of `texts`, row after row, as blocks between a begin and an end token.

    Each row is a document, followed by the end token; tokens, end tokens and `num_words` (where the end tokens around a
    block count for nothing) are those of `sentence_rows`. Tokens left over, too few for a block, are dropped.

    Args:
        texts: A data set with a column `text`, a document a row.
        tokenizer: A fast tokenizer with an EOS or SEP token.
        block_size: Tokens in a block, with the begin and end tokens.
        line_ends: Whether each line end is a word.
    Returns: `input_ids`, `attention_mask` (ones) and `labels` (the ids), each `block_size` integers, and `num_words`.
    Raises:
        ValueError: If `block_size` has no room for a token of text or is above what there is, or the tokenizer will
            not do.
    Source: Sahoo et al. 2024, its protocol for OpenWebText.  Departs: what is left over is dropped once, and not for
        each batch of documents.

    >>> from hf_targets.data.tokenization import word_level_tokenizer
    >>> texts = Dataset.from_dict({"text": ["the cat\n", "the dog\n", "the end\n"]})
    >>> tokenizer = word_level_tokenizer(texts["text"])  # it has no begin token
    >>> blocks = wrapped_blocks(texts, tokenizer, block_size=5)
    >>> tokenizer.batch_decode(blocks["input_ids"][:])
    ['the cat <eos> the <eos>', 'dog <eos> the end <eos>']
    >>> blocks["num_words"][:]
    [4, 4]
    """
    begin, end = _begin_and_end(tokenizer)
    room = _room(block_size, "block_size", begin)
    ids, words = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for row_ids, row_words, at_end in _ids_and_words(texts, tokenizer, line_ends):
        ids += [row_ids, np.array([end])]
        words += [row_words, np.array([at_end])]
    stream, counts = np.concatenate(ids), np.concatenate(words)
    num_blocks = len(stream) // room
    check_fills_a_block(len(stream), room, ", which is block_size less the begin and end tokens")
    stream, counts = stream[: num_blocks * room].reshape(-1, room), counts[: num_blocks * room].reshape(-1, room)
    blocks = np.pad(stream, ((0, 0), (0, 1)), constant_values=end)
    if begin:
        blocks = np.pad(blocks, ((0, 0), (1, 0)), constant_values=begin[0])
    columns = {
        "input_ids": blocks,
        "attention_mask": np.ones_like(blocks),
        "labels": blocks,
        NUM_WORDS: counts.sum(axis=1),
    }
    return rows_of(columns)


def protocol_columns(row: Mapping[str, Any]) -> Columns:
    """Return which of the columns a row has. None counts as missing: joined data sets fill gaps with it."""
    return tuple(name for name in (NUM_TOKENS, MAY_MASK) if row.get(name) is not None)


def protocol_columns_of(dataset: Dataset) -> set[Columns]:
    """Return which columns the rows of a data set have: one element if they are all alike."""
    names = (NUM_TOKENS, MAY_MASK)
    flags = zip(*(has_value(dataset, name) for name in names), strict=True)
    return {tuple(compress(names, row)) for row in set(flags)}


def check_one_protocol(found: Set[Columns], where: str = "") -> None:
    """Raise a ValueError, which begins with `where`, if rows with these columns are of several length protocols."""
    if len(found) > 1:
        kinds = " and ".join(sorted(" with ".join(columns) or "neither" for columns in found))
        raise ValueError(
            f"{where}rows must be of one length_protocol, and their columns of {NUM_TOKENS} and {MAY_MASK} are {kinds}"
            "; make them all with one length_protocol of sentence_rows"
        )


class DiffusionCollator:
    r"""Makes a batch of rows of different lengths, padded on the right to the longest of them.

    This padding is hidden: it has the tokenizer's pad id, else its end id, else 0, with attention mask 0, label -100
    and `may_mask` 0. A row without labels has its ids; `num_words`, `num_tokens`, `may_mask` and `timesteps` stay where
    the rows have them, and other columns are dropped.

    With `padding_free` the tokens of all rows, without padding, are one row, and `position_ids` that begin at 0 with
    each of them stand in the place of the attention mask.

    Args:
        tokenizer: None: padding has the id 0.
        padding_free: Whether the rows of a batch are packed into one.
    Raises:
        ValueError: When called, if rows are of more than one `length_protocol`, or only some have `num_words`.

    >>> from hf_targets.data.tokenization import word_level_tokenizer
    >>> texts = Dataset.from_dict({"text": ["the cat\n", "the end of it\n"]})
    >>> tokenizer = word_level_tokenizer(texts["text"])
    >>> batch = DiffusionCollator(tokenizer)(sentence_rows(texts, tokenizer, 8, "conditional").to_list())
    >>> batch["input_ids"].tolist()
    [[1, 2, 0, 7, 7], [1, 3, 5, 4, 0]]
    >>> batch["attention_mask"].tolist()
    [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    >>> batch["labels"].tolist()
    [[1, 2, 0, -100, -100], [1, 3, 5, 4, 0]]
    >>> batch["num_words"].tolist()
    [3, 5]
    >>> rows = [{"input_ids": [1, 2, 0]}, {"input_ids": [1, 3, 5, 4, 0]}]
    >>> DiffusionCollator(tokenizer, padding_free=True)(rows)["position_ids"].tolist()
    [[0, 1, 2, 0, 1, 2, 3, 4]]
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None = None, *, padding_free: bool = False) -> None:
        ends = [getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos", "sep")]
        self.pad_id: int = next((id_ for id_ in ends if isinstance(id_, int)), 0)
        self.padding_free = padding_free

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the batch; shapes and names are in the class's docstring."""
        check_one_protocol({protocol_columns(row) for row in features})
        check_words(list(features))
        given = [{name: value for name, value in row.items() if value is not None} for row in features]
        rows = [{"attention_mask": [1] * len(row["input_ids"]), "labels": row["input_ids"], **row} for row in given]
        protocol = protocol_columns(features[0])
        fills = {"input_ids": self.pad_id, "attention_mask": 0, "labels": IGNORED}
        fills |= {MAY_MASK: 0} if MAY_MASK in protocol else {}
        columns = {name: [torch.as_tensor(row[name]) for row in rows] for name in fills}
        if self.padding_free:
            keeps = [mask.bool() for mask in columns.pop("attention_mask")]
            columns = {name: [x[keep] for x, keep in zip(c, keeps, strict=True)] for name, c in columns.items()}
            columns["position_ids"] = [torch.arange(len(ids)) for ids in columns["input_ids"]]
            batch = {name: torch.cat(column)[None] for name, column in columns.items()}
        else:
            batch = {name: pad_sequence(column, True, fills[name]) for name, column in columns.items()}
        others = [name for name in (NUM_WORDS, *protocol, TIMES_COLUMN) if name in given[0]]
        numbers = {name: torch.tensor([row[name] for row in rows]) for name in others if name not in fills}
        return {**batch, **numbers}


def _begin_and_end(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], int]:
    """Return the ids that a row begins with, at most one, and the id that it ends with."""
    begins: list[Any] = [id_ for id_ in (tokenizer.bos_token_id, tokenizer.cls_token_id) if id_ is not None]
    ends: list[Any] = [id_ for id_ in (tokenizer.eos_token_id, tokenizer.sep_token_id) if id_ is not None]
    if not ends:
        raise ValueError(
            f"a row ends with the tokenizer's EOS or SEP token, and this {type(tokenizer).__name__} has neither; add "
            'one with tokenizer.add_special_tokens({"eos_token": "<|endoftext|>"})'
        )
    return begins[:1], ends[0]


def _pad_id(tokenizer: PreTrainedTokenizerBase, end: int, length_protocol: str) -> int | None:
    """Return what rows are padded with when they are made, None where they keep their length."""
    if length_protocol not in get_args(LengthProtocol):
        raise ValueError(f"length_protocol is one of {', '.join(get_args(LengthProtocol))}, got {length_protocol!r}")
    if length_protocol == "conditional":
        return None
    pad = cast(int | None, tokenizer.pad_token_id)
    if pad is None or pad == end:
        raise ValueError(
            f'with length_protocol="{length_protocol}" a row needs a padding token that is not the end token, got '
            f'{tokenizer.pad_token!r}; call add_missing_tokens, or choose "conditional"'
        )
    return pad


def _padded(row: list[int], length: int, fill: int) -> list[int]:
    return row + [fill] * (length - len(row))


def _room(length: int, name: str, begin: list[int]) -> int:
    """Return how many tokens of text a row of `length` has."""
    room = length - len(begin) - 1
    if room < 1:
        raise ValueError(f"{name} must be at least {length - room + 1}, special tokens included, got {length}")
    return room


def _ids_and_words(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, line_ends: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield, of each row that is not blank, the id of each token, the words that begin in it, and those at its end."""
    for rows in text_batches(texts):
        whole = [text for text in rows if text.strip()]
        batch = [text.rstrip("\n") for text in whole]
        if not batch:
            continue
        encoded = encode(batch, tokenizer, split_special_tokens=True)
        for row, text, ids, offsets in zip(whole, batch, *encoded, strict=True):
            if ids:  # a tokenizer may drop all characters
                starts = word_starts([text], line_ends=line_ends)
                begins = owners(starts, np.array([end for _, end in offsets]))
                at_end = max(1, len(row) - len(text)) if line_ends else 0
                yield np.array(ids, np.int64), np.bincount(begins, minlength=len(ids)), at_end
