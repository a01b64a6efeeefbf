"""A text with its token ids and the characters that each of them covers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from hf_targets.data.tokenization import encode, special_token_ids

_PART_OF_A_CHARACTER = "\ufffd"


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text, its token ids, and the characters [start, end) of each token.

    Tokens that share a character (the bytes of an emoji, say) all cover it. Whether the space before a word belongs to
    the word's first token is up to the tokenizer.

    >>> from hf_targets.data.tokenization import word_level_tokenizer
    >>> text = TokenizedText.from_text("the cat\\n", word_level_tokenizer(["the cat\\n"]))
    >>> text.ids, text.offsets.tolist()
    ([2, 1, 0], [[0, 3], [4, 7], [7, 8]])
    """

    text: str
    ids: list[int]
    offsets: np.ndarray = field(repr=False)
    """(tokens, 2) integers: the characters [start, end) of each token in `text`."""
    special_ids: frozenset[int] = frozenset()
    """Ids that no phrase may hold: the tokenizer's special tokens, such as the end of a text."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_text(cls, text: str, tokenizer: PreTrainedTokenizerBase) -> "TokenizedText":
        """Return `text` as a fast tokenizer cuts it, without the special tokens of a model's input."""
        (ids,), (offsets,) = encode([text], tokenizer)
        return cls(text, ids, np.array(offsets, np.int64).reshape(-1, 2), special_token_ids(tokenizer))

    @classmethod
    def from_ids(cls, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> "TokenizedText":
        """Return the text of `ids`, which keep their order and number even where `tokenizer` would cut otherwise.

        Where it would (a block that begins inside a word, two lines that were tokenized apart), the characters are
        found token by token; those of a token that does not end a character reach to the end of it.

        Raises:
            ValueError: If the tokenizer is not a fast one.
        """
        ids = [int(id_) for id_ in ids]
        text = str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        again = cls.from_text(text, tokenizer)
        return again if again.ids == ids else cls._piece_by_piece(ids, tokenizer)

    def token_edges(self, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for spans of characters the tokens that start them and those after their ends, -1 where none does.

        White space at either end of a token is not counted as part of it, line ends are; a token that reaches out of a
        span neither starts nor ends it.

        Args:
            spans: Characters [start, end) without white space at either end, (spans, 2).

        Returns: Two arrays (spans,).
        """
        characters = np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), np.uint32)
        blank = _IS_BLANK[np.minimum(characters, len(_IS_BLANK) - 1)]
        positions, end = np.arange(len(characters)), len(characters)
        next_start = np.minimum.accumulate(np.append(np.where(blank, end, positions), end)[::-1])[::-1]
        last_end = np.maximum.accumulate(np.append(0, np.where(blank, 0, positions + 1)))
        starts, ends = next_start[self.offsets[:, 0]], last_end[self.offsets[:, 1]]
        tokens = np.flatnonzero(starts < ends)  # the others are white space
        if len(tokens) == 0:
            return np.full(len(spans), -1), np.full(len(spans), -1)
        starts, ends = starts[tokens], ends[tokens]

        first = np.searchsorted(starts, spans[:, 0], side="left").clip(max=len(tokens) - 1)
        begins = (starts[first] == spans[:, 0]) & (np.append(0, ends)[first] <= spans[:, 0])
        last = np.searchsorted(ends, spans[:, 1], side="right") - 1  # -1 is the last token, which ends elsewhere
        finishes = (ends[last] == spans[:, 1]) & (np.append(starts, end)[last + 1] >= spans[:, 1])
        return np.where(begins, tokens[first], -1), np.where(finishes, tokens[last] + 1, -1)

    def without_special(self, spans: np.ndarray) -> np.ndarray:
        """Return those `spans` of tokens [start, end), (spans, 2), that hold none of `special_ids`."""
        before = np.append(0, np.cumsum(np.isin(self.ids, list(self.special_ids))))
        return spans[before[spans[:, 0]] == before[spans[:, 1]]]

    @classmethod
    def _piece_by_piece(cls, ids: list[int], tokenizer: PreTrainedTokenizerBase) -> "TokenizedText":
        decode = cast(Tokenizer, tokenizer.backend_tokenizer).decode
        pieces, offsets = [], np.zeros((len(ids), 2), np.int64)
        start = context = first = 0  # a character, the token that begins the context, and the first that is not told
        for end in range(1, len(ids) + 1):
            told, text = (decode(ids[context:last], skip_special_tokens=False) for last in (first, end))
            if text.endswith(_PART_OF_A_CHARACTER) and end < len(ids):
                continue
            # Bytes that are no character can take back what was told; the tokens then stand for themselves.
            is_longer = text.startswith(told)
            pieces.append(text[len(told) :] if is_longer else decode(ids[first:end], skip_special_tokens=False))
            offsets[first:end] = start, start + len(pieces[-1])
            start, context, first = start + len(pieces[-1]), first, end
        return cls("".join(pieces), ids, offsets, special_token_ids(tokenizer))


def _is_blank(character: str) -> bool:
    return character.isspace() and character.splitlines() != [""]


_IS_BLANK = np.array([_is_blank(chr(code)) for code in range(0x3002)])  # the last white space is U+3000
