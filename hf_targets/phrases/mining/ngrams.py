"""Where the phrases of a text are: windows of its tokens, or of its words."""

from itertools import pairwise
from typing import Any

import numpy as np
import regex

from hf_targets.extras import require
from hf_targets.phrases.mining.closed_classes import FUNCTION_WORDS
from hf_targets.phrases.mining.miner import MINERS, MiningTask
from hf_targets.phrases.mining.tokenized_text import TokenizedText

_WORD = regex.compile(r"\w+(?:['\u2019.-]\w+)*")


class TokenNgrams:
    """All windows of a number of tokens ("N-ids"); by default those that the paper cuts from retrieved documents.

    Source: Liu et al. 2024, sections 2.4 and 3.1.

    >>> text = TokenizedText("a b c", [0, 1, 2], np.array([[0, 1], [1, 3], [3, 5]]))
    >>> TokenNgrams(max_tokens=3).spans(text).tolist()
    [[0, 2], [0, 3], [1, 3]]
    """

    def __init__(self, min_tokens: int = 2, max_tokens: int = 8) -> None:
        if not 2 <= min_tokens <= max_tokens:
            raise ValueError(f"sizes must be 2 <= min_tokens <= max_tokens, got {min_tokens} and {max_tokens}")
        self.min_tokens, self.max_tokens = min_tokens, max_tokens

    @classmethod
    def for_task(cls, task: MiningTask) -> "TokenNgrams":
        """Return the windows of 2 to 5 tokens, and of at most the task's `max_tokens`."""
        return cls(2, min(5, task.max_tokens))

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return every window of `min_tokens` to `max_tokens` tokens without a special token."""
        starts = np.arange(len(text))
        lengths = np.arange(self.min_tokens, self.max_tokens + 1)
        spans = np.stack(np.broadcast_arrays(starts[:, None], starts[:, None] + lengths), axis=-1).reshape(-1, 2)
        return text.without_special(spans[spans[:, 1] <= len(text)])


class WordNgrams:
    """All windows of a number of words ("N-words"), cut where tokens and words agree; none crosses a line end.

    A word is what the NLTK word tokenizer makes of a line. A window begins with the first token of a word, with the
    space that this token may have before it, and ends with the last token of a word: where a token reaches into two
    words, no window begins or ends between them.

    Args:
        max_tokens: The longest to keep; None: any.
        trimmed: Whether to keep only windows that read well in another text. Their words are runs of letters and
            digits, parted by one space, or by a comma and a space, so that no sentence, bracket or quotation ends
            inside; the first and the last are no `FUNCTION_WORDS` (of English) and cut no name, words in a row with
            capitals; and a space is before the first, so that it does not run into the word before it.
    Source: Liu et al. 2024, section 2.4.  Departs: `trimmed` is ours.

    >>> text = TokenizedText("a bc d", [0, 1, 2, 3], np.array([[0, 1], [1, 3], [3, 4], [4, 6]]))
    >>> WordNgrams(max_words=2).spans(text).tolist()
    [[0, 3], [1, 4]]
    """

    def __init__(
        self, min_words: int = 2, max_words: int = 5, *, max_tokens: int | None = None, trimmed: bool = False
    ) -> None:
        if not 1 <= min_words <= max_words:
            raise ValueError(f"sizes must be 1 <= min_words <= max_words, got {min_words} and {max_words}")
        self.min_words, self.max_words, self.max_tokens = min_words, max_words, max_tokens
        self.trimmed = trimmed
        self._tokenizer = None if trimmed else word_tokenizer()

    @classmethod
    def for_task(cls, task: MiningTask) -> "WordNgrams":
        """Return the runs of 2 to 5 words."""
        return cls(2, 5)

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return every window of `min_words` to `max_words` words and 2 tokens or more, without a special token."""
        if self.trimmed:
            words, lines, begins, finishes = _words_to_trim(text.text)
        else:
            words, lines = words_of_lines(text.text, self._tokenizer)
            begins = finishes = np.ones(len(words), bool)
        starts, ends = text.token_edges(words)
        if self.trimmed and len(text):
            starts = _with_space_before(text, starts)
        sizes = np.arange(self.min_words, self.max_words + 1)
        first = np.repeat(np.arange(len(words)), len(sizes))  # in order and distinct: a token starts one word at most
        last = first + np.tile(sizes - 1, len(words))
        first, last = first[last < len(words)], last[last < len(words)]
        whole = (starts[first] >= 0) & (lines[first] == lines[last]) & (ends[last] - starts[first] >= 2)
        whole &= begins[first] & finishes[last]
        if self.max_tokens is not None:
            whole &= ends[last] - starts[first] <= self.max_tokens
        return text.without_special(np.stack([starts[first], ends[last]], axis=1)[whole])


def _words_to_trim(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the words of a text, the number of the run that each is in, and whether a phrase begins, ends with it."""
    spans = [found.span() for found in _WORD.finditer(text)]
    gaps = [text[end:start] for (_, end), (start, _) in pairwise(spans)]
    finishes = np.array([text[start:end].lower() not in FUNCTION_WORDS for start, end in spans], bool)
    begins = finishes & np.array([text[start - 1 : start] == " " for start, _ in spans], bool)
    capital = finishes & np.array([text[start].isupper() for start, _ in spans], bool)
    in_a_name = capital[:-1] & capital[1:] & np.array([gap == " " for gap in gaps], bool)
    finishes[:-1] &= ~in_a_name
    begins[1:] &= ~in_a_name
    runs = np.cumsum([False, *(gap not in (" ", ", ") for gap in gaps)])[: len(spans)]
    return np.array(spans, np.int64).reshape(-1, 2), runs, begins, finishes


def _with_space_before(text: TokenizedText, starts: np.ndarray) -> np.ndarray:
    """Return the first tokens of words, or the token before one that is the space of the word alone."""
    edges, is_space = text.offsets, np.array([letter == " " for letter in f"{text.text} "])
    alone, before = is_space[edges[:, 0]] & (edges[:, 1] - edges[:, 0] == 1), np.maximum(starts - 1, 0)
    joins = (starts > 0) & alone[before] & (edges[before, 1] == edges[starts, 0]) & ~is_space[edges[starts, 0]]
    return starts - joins


def word_tokenizer() -> Any:
    """Return NLTK's word tokenizer, which needs no model."""
    return require("nltk.tokenize", extra="phrases").NLTKWordTokenizer()


def words_of_lines(text: str, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the characters [start, end) of each word, (words, 2), and the number of its line, (words,).

    Where NLTK cannot tell where the words of a line are, they are its runs without white space.
    """
    words, lines, line_start = [], [], 0
    for number, line in enumerate(text.splitlines(keepends=True)):
        spans = [] if line.isspace() else _words_of(line, tokenizer)
        words += [(line_start + start, line_start + end) for start, end in spans]
        lines += [number] * len(spans)
        line_start += len(line)
    return np.array(words, np.int64).reshape(-1, 2), np.array(lines, np.int64)


def _words_of(line: str, tokenizer: Any) -> list[tuple[int, int]]:
    try:
        return list(tokenizer.span_tokenize(line))
    except (ValueError, RuntimeError):  # NLTK's, on some lines with quotes of several kinds
        return [found.span() for found in regex.finditer(r"\S+", line)]


MINERS.register("words", WordNgrams)
MINERS.register("tokens", TokenNgrams)
