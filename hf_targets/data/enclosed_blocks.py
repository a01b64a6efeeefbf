"""Text in blocks between the special tokens of a row, as masked models read it."""

from itertools import chain

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_targets.data.offsets import encode
from hf_targets.data.token_rows import text_batches


def enclosed_blocks(texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int) -> Dataset:
    """Return the tokens of `texts`, row after row, in blocks that begin with `[CLS]` and end with `[SEP]`.

    Each token is in one block. The last block is shorter than the others, or as long.

    Args:
        texts: A data set with a column `text`.
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
    if block_size < 3:
        raise ValueError(f"block_size must be at least 3, a token between two special ones, got {block_size}")
    if missing := [name for name in ("cls_token", "sep_token") if getattr(tokenizer, name) is None]:
        raise ValueError(f"blocks begin and end with special tokens, and the tokenizer has no {' and '.join(missing)}")
    rows = [encode(batch, tokenizer)[0] for batch in text_batches(texts, tokenizer)]
    ids = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), np.int64)
    if not len(ids):
        raise ValueError("blocks need a text, and there is none")
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    parts = [ids[start : start + block_size - 2].tolist() for start in range(0, len(ids), block_size - 2)]
    return Dataset.from_dict({"input_ids": [[first, *part, last] for part in parts]})
