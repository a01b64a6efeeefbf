"""A generated text in a terminal: its phrases marked, and where each comes from."""

from collections.abc import Sequence

from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

_COLOUR = ("\x1b[1;34m", "\x1b[0m")
_BRACKETS = ("[", "]")


def mark_in_terminal(text: str, spans: Sequence[PhraseSpan], *, colour: bool = True) -> str:
    """Return a text whose phrases are bold and blue in a terminal, or in brackets.

    Args:
        text: Generated.
        spans: Its phrases, from `PhraseVocabulary.spans`.
        colour: Whether the text goes to a terminal; brackets mark phrases in a file or a pipe.

    >>> mark_in_terminal("on the mat", [PhraseSpan(2, 10, 9, " the mat", ())])
    'on \\x1b[1;34mthe mat\\x1b[0m'
    >>> mark_in_terminal("on the mat", [PhraseSpan(2, 10, 9, " the mat", ())], colour=False)
    'on [the mat]'
    """
    opening, closing = _COLOUR if colour else _BRACKETS
    parts, end = [], 0
    for span in spans:
        start = first_letter(text, span)
        parts += [text[end:start], opening, text[start : span.end], closing]
        end = span.end
    return "".join([*parts, text[end:]])


def list_sources(spans: Sequence[PhraseSpan]) -> str:
    """Return a line for each phrase, in the order of the text, with the first position that it comes from.

    >>> from hf_targets.phrases.vocabulary.sources import PhraseSource
    >>> list_sources([PhraseSpan(2, 10, 9, " the mat", (PhraseSource("cat.txt", 11, 18),))])
    '1. the mat: cat.txt, characters 11 to 18'
    """
    return "\n".join(
        f"{number}. {' '.join(span.text.split())}: {source_of(span)}" for number, span in enumerate(spans, start=1)
    )


def source_of(span: PhraseSpan) -> str:
    """Return in words where a phrase comes from."""
    if not span.sources:
        return "from a list of phrases"
    first, num_others = span.sources[0], len(span.sources) - 1
    others = f", and {num_others} more {'time' if num_others == 1 else 'times'}" if num_others else ""
    return f"{first.document}, characters {first.start} to {first.end}{others}"


def check_source(span: PhraseSpan, source: PhraseSource, document: str) -> None:
    """Check that the place that a phrase comes from is one of its document.

    Raises:
        ValueError: If it is not.
    """
    if not 0 <= source.start < source.end <= len(document):
        raise ValueError(
            f"the phrase {span.text!r} comes from characters [{source.start}, {source.end}) of document "
            f"{source.document!r}, which has {len(document)}; give the documents that the phrases were found in"
        )


def first_letter(text: str, span: PhraseSpan) -> int:
    """Return the index of the first character of a phrase that is no white space; its end if there is none."""
    return span.end - len(text[span.start : span.end].lstrip())
