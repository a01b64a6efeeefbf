"""Conversion of token ids from one tokenizer to another that gives the same text."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.vocabulary.tokenization import text_mid_text, tokenize_mid_text

_PART_OF_A_CHARACTER = "\ufffd"


class Retokenizer:
    r"""A converter of token ids from one tokenizer to another, for ids in the middle of a text.

    >>> from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
    >>> lines = ["the cat sat on the mat\n"] * 9
    >>> words, pieces = word_level_tokenizer(lines), train_bpe_tokenizer(lines, vocab_size=262)
    >>> [ids] = Retokenizer(words, pieces)([words("cat sat")["input_ids"]])
    >>> pieces.decode(ids)
    ' cat sat'
    """

    def __init__(self, source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> None:
        self.source, self.target = source, target

    def __call__(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the target's ids for the text of each row, up to the first incomplete character."""
        texts = [text_mid_text(row, self.source).split(_PART_OF_A_CHARACTER)[0] for row in rows]
        return tokenize_mid_text(texts, self.target)

    def inverse(self) -> "Retokenizer":
        """Return the converter from the target's ids to the source's."""
        return Retokenizer(self.target, self.source)
