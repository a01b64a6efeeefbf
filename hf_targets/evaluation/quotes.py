"""Whether an answer misquotes: each quotation or phrase with a document's marker must stand in that document."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import regex

_MARKER = re.compile(r"\[\d{1,9}\]")
_AFTER_QUOTE = re.compile(r"[.,;:!?]?\s*(?=\[\d)")
_STRAIGHT, _DOUBLE, _OPENS, _CLOSES = '"', '"\u201c\u201d\u201e\u201f\u00ab\u00bb', "\u00ab\u201e", "\u00bb\u201d"
_ALIKE = str.maketrans(dict.fromkeys(_DOUBLE, _STRAIGHT) | dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc", "'"))
_ELLIPSIS = re.compile(r"\[?(?:\.\.\.+|\u2026)\]?")
_EDGES = " .,;:!?\u2026\"'"
_LETTERS_AFTER = regex.compile(r"(?:\[\d{1,9}\])+([\p{L}\p{M}\p{N}]+)")  # as in "bank[1]er"
_PIECE = 2
"""Words that a piece of a spliced span has at least."""


@dataclass(frozen=True)
class MarkedSpan:
    """Part of an answer that its marker says to be a document's words.

    Attributes:
        start, end: Its characters in the answer, without quotation marks and markers.
        text: These, and what goes on with the last word of a phrase behind a marker that is not a part of it.
        markers: Numbers of the documents that it names, from 1.
    """

    start: int
    end: int
    text: str
    markers: tuple[int, ...]


@dataclass(frozen=True)
class QuoteCheck:
    """The marked spans of an answer, by what is right or wrong with them, and markers that follow none."""

    right: tuple[MarkedSpan, ...]
    fabricated: tuple[MarkedSpan, ...]
    spliced: tuple[MarkedSpan, ...]
    misattributed: tuple[MarkedSpan, ...]
    num_other_markers: int


def check_quotes(
    answer: str, documents: Iterable[Mapping[str, Any] | str], *, phrases: Iterable[tuple[int, int]] = ()
) -> QuoteCheck:
    """Check that each marked span of an answer is one contiguous span of each document that its markers name.

    A marked span is text in double quotation marks with markers such as `[2]` or `[1][2]` after it, or one of the
    `phrases` that ends with markers or has them after it. Between a quotation and its markers there may be one mark of
    punctuation and white space. A span is

    - *right* if each document that it names has it,
    - else *misattributed* if another document has it, or only some of those that it names,
    - else *spliced* if it falls into pieces of two words or more, each of which a document has: of several documents,
      or from several places in one, with an ellipsis between them or without,
    - else *fabricated*.

    A document has a span if its title or its text has the same characters from the beginning of a word to the end of
    one. These do not count: how much white space there is, of which kind quotation marks and apostrophes are, whether
    the first letter is a capital, and punctuation and ellipses at both ends. Everything else counts: case, the
    punctuation within, hyphens.

    Args:
        documents: Texts, or mappings with `text` and perhaps `title`, in the order of their numbers; the first is 1.
        phrases: Start and end of each phrase, in characters of the answer, as `PhraseSpan` has them.
    Raises:
        ValueError: If `documents` is no list of texts, or a phrase is not in the answer.

    >>> documents = ["Cats sleep all day.", "Dogs bark at night."]
    >>> found = check_quotes('They say "cats sleep" [1] and "dogs sleep at night" [2].', documents)
    >>> [span.text for span in found.right], [span.text for span in found.fabricated]
    (['cats sleep'], ['dogs sleep at night'])
    """
    documents = [] if isinstance(given := documents, str | Mapping) else [*given]
    texts = [one.get("text") if isinstance(one, Mapping) else one for one in documents]
    if isinstance(given, str | Mapping) or not all(isinstance(one, str) for one in texts):
        raise ValueError(
            f"documents must be a list of texts, or of mappings with text; the first is [1], got {given!r:.40}"
        )
    known = [[_normal(part) for part in _parts(document)] for document in documents]
    spans = [*_quotations(answer), *_marked_phrases(answer, phrases)]
    found: dict[str, list[MarkedSpan]] = {"right": [], "fabricated": [], "spliced": [], "misattributed": []}
    for span in sorted(spans, key=lambda span: span.start):
        found[_verdict(span, known)].append(span)
    others = len(_MARKER.findall(answer)) - sum(len(span.markers) for span in spans)
    return QuoteCheck(**{name: tuple(some) for name, some in found.items()}, num_other_markers=max(others, 0))


def _parts(document: Mapping[str, Any] | str) -> list[str]:
    return [document] if isinstance(document, str) else [document.get("title") or "", document["text"]]


def _normal(text: str) -> str:
    return " ".join(re.sub('"+', '"', unicodedata.normalize("NFC", text).translate(_ALIKE)).split())


def _markers_after(answer: str, end: int) -> tuple[int, ...]:
    """Return the numbers of the markers that stand one after the other from a character on."""
    numbers = []
    while found := _MARKER.match(answer, end):
        numbers.append(int(found[0][1:-1]))
        end = found.end()
        while answer[end : end + 1].isspace() and answer[end + 1 : end + 2] in ("[", " "):
            end += 1
    return tuple(numbers)


def _quotations(answer: str) -> Iterator[MarkedSpan]:
    """Yield the quotations with markers; of those within one another the outer ones too, if they have markers."""
    open_marks: list[int] = []
    last = None
    for mark in re.finditer(f"[{_DOUBLE}]", answer):
        at = mark.start()
        if _side(answer, at, answer[open_marks[-1]] if open_marks else "") > 0:
            open_marks.append(at)
            continue
        # a mark too many, as of inches, does not hide what is quoted around it
        begin, last = (open_marks[-1], open_marks.pop()) if open_marks else (last, None)
        gap = _AFTER_QUOTE.match(answer, at + 1)
        markers = _markers_after(answer, gap.end()) if gap else ()
        if markers and begin is not None and re.search(r"\w", text := answer[begin + 1 : at]):
            start = begin + 1 + len(text) - len(text.lstrip())
            yield MarkedSpan(start, start + len(text.strip()), text.strip(), markers)


def _side(answer: str, at: int, opened: str) -> int:
    """Return 1 for a quotation mark that opens a quotation, -1 for one that closes it.

    Its form and the mark that is open tell, else the characters around it; one between white space opens where none is.
    """
    if answer[at] in _OPENS or (answer[at] in _CLOSES and opened):
        return 1 if answer[at] in _OPENS and opened + answer[at] != "\u00bb\u00ab" else -1
    before, after = answer[max(at - 8, 0) : at].rstrip(_DOUBLE)[-1:], answer[at + 1 : at + 9].lstrip(_DOUBLE)[:1]
    begins = not before or before.isspace() or before in "([{]-\u2013\u2014/"
    ends = not after or after.isspace() or after == "["
    return 1 if begins and not (ends and opened) else -1


def _marked_phrases(answer: str, phrases: Iterable[tuple[int, int]]) -> Iterator[MarkedSpan]:
    for start, end in phrases:
        if not 0 <= start <= end <= len(answer):
            raise ValueError(f"a phrase must be in the answer's {len(answer)} characters, got {start} to {end}")
        text = answer[start:end].rstrip()
        numbers: list[int] = []
        while found := re.search(r"\[\d{1,9}\]$", text):
            numbers.insert(0, int(found[0][1:-1]))
            text = text[: found.start()].rstrip()
        markers = tuple(numbers) or _markers_after(answer, end)
        if markers and re.search(r"\w", text):
            begin, stop = start + len(text) - len(text.lstrip()), start + len(text)
            goes_on = _LETTERS_AFTER.match(answer, end) if not numbers and _in_word(answer[end - 1] * 2) else None
            yield MarkedSpan(begin, stop, text.lstrip() + (goes_on[1] if goes_on else ""), markers)


def _verdict(span: MarkedSpan, documents: Sequence[Sequence[str]]) -> str:
    text = _normal(span.text)
    having = {number for number, parts in enumerate(documents, start=1) if _has(parts, text)}
    if having:
        return "right" if having.issuperset(span.markers) else "misattributed"
    parts = [part for document in documents for part in document]
    return "spliced" if _is_pieced(_ELLIPSIS.sub(" ", text).split(), parts) else "fabricated"


def _has(parts: Sequence[str], span: str) -> bool:
    """Return whether a text has a span from the beginning of a word to the end of one."""
    span = span.strip(_EDGES)
    if not span:
        return True
    forms = {span, span[0].swapcase() + span[1:]}
    return any(_has_words(part, form) for part in parts for form in forms)


def _has_words(text: str, span: str) -> bool:
    start = text.find(span)
    while start >= 0:
        end = start + len(span)
        if not (_in_word(text[start - 1 : start + 1]) and start) and not _in_word(text[end - 1 : end + 1]):
            return True
        start = text.find(span, start + 1)
    return False


def _in_word(two: str) -> bool:
    return regex.fullmatch(r"[\p{L}\p{M}\p{N}]{2}", two) is not None


def _is_pieced(words: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether words fall into pieces of `_PIECE` words or more that texts have."""
    reached, end = {0}, 0
    for start in range(len(words)):
        end = max(end, start)
        while end < len(words) and _has(parts, " ".join(words[start : end + 1])):
            end += 1
        if start in reached:
            reached.update(range(start + _PIECE, end + 1))
    return len(words) in reached and bool(words)
