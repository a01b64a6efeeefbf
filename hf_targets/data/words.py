"""The words of a text: which token begins each, whatever the tokenizer, and which words two texts share."""

from collections.abc import Sequence
from unicodedata import normalize

import numpy as np
import regex

_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])  # the last white space is U+3000
_LINE_END = ord("\n")


def word_starts(texts: Sequence[str], *, line_ends: bool) -> np.ndarray:
    r"""Return the characters that begin a word in texts written one after the other, ascending.

    A word is a run without white space; each text begins a new one. With `line_ends` each "\\n" is a word too, as is
    the convention of word-level perplexities on Penn Treebank and WikiText.

    >>> word_starts(["the cat\n", "a cat\n"], line_ends=True).tolist()
    [0, 4, 7, 8, 10, 13]
    """
    characters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    text_starts = np.cumsum([0, *map(len, texts)])[:-1]
    is_space = _IS_SPACE[np.minimum(characters, len(_IS_SPACE) - 1)]
    after_space = np.concatenate([[True], is_space[:-1]])[: len(characters)]
    after_space[text_starts[text_starts < len(characters)]] = True
    begins = after_space & ~is_space
    return np.flatnonzero(begins | (characters == _LINE_END) if line_ends else begins)


def owners(starts: np.ndarray, token_ends: np.ndarray) -> np.ndarray:
    """Return the token that begins each word: the first to end after the word's first character.

    A tokenizer may have dropped that character (then it is the next token, or the last one of all), or share it among
    several (then it is the first of them).

    Args:
        starts: Characters, from `word_starts`.
        token_ends: The character after each token, ascending, one token or more.
    """
    return np.searchsorted(token_ends, starts, side="right").clip(max=len(token_ends) - 1)


def word_runs(text: str) -> list[str]:
    """Return the words of a text in order, in lower case and composed form (NFC), to compare texts by.

    A word is a run of letters and digits, with the marks that belong to letters: vowel signs, accents, joiners. Text of
    a script that writes no space between words is one word up to the next stop.

    >>> word_runs("The cat's हिन्दी, 2nd")
    ['the', 'cat', 's', 'हिन्दी', '2nd']
    """
    return regex.findall(r"\w+", normalize("NFC", text.lower()))  # the \w of re has no marks


def words_and_marks(text: str) -> list[str]:
    """Return the words of a text and its marks of punctuation, each by itself, in order.

    >>> words_and_marks("A well-known cat, 2 @ 5.")
    ['A', 'well', '-', 'known', 'cat', ',', '2', '@', '5', '.']
    """
    return regex.findall(r"\w+|[^\w\s]", text)


def check_texts(texts: Sequence[str], what: str) -> None:
    """Raise a ValueError if `texts` is one text, or one in it is no text or has half a letter."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ValueError(f"{what} must be a list of texts, got {texts!r:.60}; put it in a list")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{what} must be texts, and number {index} is {text!r:.60}")
        check_letters(text, f"number {index} of the {what}")


def check_letters(text: str, what: str) -> None:
    """Raise a ValueError if a text has a lone surrogate, half of a letter, which tokenizers do not take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must have whole letters, got half of one at character {error.start}") from error
