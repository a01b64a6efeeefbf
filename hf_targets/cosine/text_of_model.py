"""How often the tokens of a model occur in a text, and the text as batches for it."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase


def token_frequencies(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, vocab_size: int
) -> Int[Tensor, "vocab"]:
    """Return how often each token occurs in texts.

    Raises:
        ValueError: If the tokenizer gives an id beyond the vocabulary: it is another model's.
    """
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for start in range(0, len(texts), 1000):
        found = tokenizer(list(texts[start : start + 1000]), add_special_tokens=False, verbose=False)["input_ids"]
        ids = torch.tensor([one for row in found for one in row], dtype=torch.long)
        if ids.numel() and ids.max() >= vocab_size:
            raise ValueError(f"token ids must be below {vocab_size}, got {ids.max()}; give the model's own tokenizer")
        counts += torch.bincount(ids, minlength=vocab_size)
    return counts


def text_batches(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int = 64, batch_size: int = 8
) -> Iterator[dict[str, Tensor]]:
    """Yield texts, one after the other, as batches of `input_ids` (batch, length) without padding."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        while len(ids) >= length * batch_size:
            yield {"input_ids": torch.tensor(ids[: length * batch_size]).view(batch_size, length)}
            ids = ids[length * batch_size :]
    if len(ids) >= length:
        rows = len(ids) // length
        yield {"input_ids": torch.tensor(ids[: rows * length]).view(rows, length)}
