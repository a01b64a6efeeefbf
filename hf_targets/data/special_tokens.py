"""The special tokens of a tokenizer."""

from transformers import PreTrainedTokenizerBase


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of all special tokens, those without a role included, such as the end of a turn in a chat.

    `tokenizer.all_special_ids` has only those with a role: begin, end, padding and so on.
    """
    marked = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | marked
