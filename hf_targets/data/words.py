"""How many words a text has and which token begins each: counted one way, whatever the tokenizer."""

from collections.abc import Sequence

import numpy as np

_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])  # the last white space is U+3000
_LINE_END = ord("\n")


def word_starts(texts: Sequence[str], *, line_ends: bool) -> np.ndarray:
    r"""Return the characters that begin a word in texts written one after the other, ascending.

    A word is a run without white space; each text begins a new one. With `line_ends` each "\\n" is a word too, as is
    the convention of word-level perplexities on Penn Treebank and WikiText.

    >>> word_starts(["the cat\n", "a cat\n"], line_ends=True).tolist()
    [0, 4, 7, 8, 10, 13]
    >>> word_starts(["the cat\n", "a cat\n"], line_ends=False).tolist()
    [0, 4, 8, 10]
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
