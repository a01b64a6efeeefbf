"""Texts as token ids, with the characters that each token covers."""

from typing import Any

from transformers import PreTrainedTokenizerBase


def check_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a tokenizer tells the characters of each token.

    Raises:
        ValueError: If it is a slow one, written in Python.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"only a fast tokenizer tells the characters of a token, which words and phrases are found by, and "
            f"{type(tokenizer).__name__} is a slow one; load it with AutoTokenizer, or convert it"
        )


def encode(texts: list[str], tokenizer: PreTrainedTokenizerBase, **options: Any) -> tuple[list[list[int]], list[Any]]:
    """Return the ids of each text without special tokens around it, and the characters [start, end) of each token.

    Args:
        options: Of the tokenizer's call, such as `split_special_tokens`.
    Raises:
        ValueError: If the tokenizer is a slow one.
    """
    check_fast(tokenizer)
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_attention_mask=False,
        return_offsets_mapping=True,
        verbose=False,
        **options,
    )
    return encoded["input_ids"], encoded["offset_mapping"]
