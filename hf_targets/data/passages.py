"""Documents cleaned and cut into passages of about as many words."""

import re
import unicodedata
from collections.abc import Iterator

from hf_targets.data.corpora import documents_of

_NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_BLANK, _LINES, _WORD = re.compile(r"[^\S\n]+"), re.compile(r" ?\n\s*"), re.compile(r"\S+")
_ENDS = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])(?=\s)(?!\s+[a-z])|(?<=\n)")


def clean_text(text: str) -> str:
    """Return a text in composed form (NFC) without control characters, with single spaces and no blank lines.

    >>> clean_text("a\\u00a0 b\\x00\\r\\n\\n c ")
    'a b\\nc'
    """
    text = _NOT_TEXT.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = unicodedata.normalize("NFC", text)
    return _LINES.sub("\n", _BLANK.sub(" ", text)).strip()


def passages_of(text: str, num_words: int = 100) -> list[str]:
    """Return the passages of a cleaned text: whole sentences and lines, until there are `num_words` words or more.

    A sentence of more words is cut after each `num_words`. The passages of a text make it up, without the white space
    between them.

    >>> passages_of("One two. Three four five six.\\nSeven", num_words=3)
    ['One two. Three four five', 'six.\\nSeven']
    """
    found = documents_of(_pieces(text, num_words), num_words)
    return [passage.strip() for passage in found.values()]


def _pieces(text: str, num_words: int) -> Iterator[str]:
    """Yield sentences and lines with the white space before or after them, those of many words in parts."""
    start = 0
    for end in [*(found.start() for found in _ENDS.finditer(text)), len(text)]:
        words = list(_WORD.finditer(text, start, end))
        for cut in [*(word.end() for word in words[num_words - 1 : -1 : num_words]), end]:
            yield text[start:cut]
            start = cut
