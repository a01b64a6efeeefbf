"""How much of an answer comes from documents, and whether its markers are right: from its phrases alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

_MARKER = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Provenance:
    """What an answer has from documents. No model of inference is asked.

    Attributes:
        num_characters: Of the answer, without white space and markers.
        num_from_documents: How many of them stand in phrases of the documents.
        num_markers: Markers such as "[1]" in the answer.
        num_of_phrases: How many of them end a phrase that comes from the document they name; a model may also write a
            marker as tokens, or a phrase have brackets of its document in it.
        num_right: For how many of these the document has the text of the phrase where its source says. All of them,
            unless the documents are other than those of the phrases.
        documents: Names of the documents that phrases come from, in the order of the answer.
    """

    num_characters: int
    num_from_documents: int
    num_markers: int
    num_of_phrases: int
    num_right: int
    documents: tuple[str, ...]


def provenance_of(text: str, spans: Sequence[PhraseSpan], documents: Mapping[str, str]) -> Provenance:
    """Return what an answer has from documents.

    Args:
        text: An answer, with markers or without.
        spans: Its phrases: with their markers inside, as `citing_phrases` makes them, or before them, as `mark_sources`
            returns them. Of neighbours of one document the marker after the last one counts for that.
        documents: Texts by name; the marker "[1]" names document "1".

    >>> span = PhraseSpan(2, 13, 9, " the mat[1]", (PhraseSource("1", 12, 19),))
    >>> provenance_of("on the mat[1].", [span], {"1": "A cat is on the mat."})
    Provenance(num_characters=9, num_from_documents=6, num_markers=1, num_of_phrases=1, num_right=1, documents=('1',))
    """
    phrases = [(span, of) for span in spans if (of := [one for one in span.sources if one.document in documents])]
    markers = list(_MARKER.finditer(text))
    in_markers = {place for marker in markers for place in range(*marker.span())}
    counted = {place for place, letter in enumerate(text) if not letter.isspace()} - in_markers
    from_documents = {place for span, _ in phrases for place in range(span.start, span.end)}
    of_phrases = right = 0
    for marker in markers:
        written, source = _marked(text, marker, phrases, documents)
        of_phrases += source is not None
        right += source is not None and _stands(written, source, documents)
    used = dict.fromkeys(of[0].document for _, of in phrases)
    numbers = len(counted), len(counted & from_documents), len(markers), of_phrases, right
    return Provenance(*numbers, tuple(used))


def _marked(
    text: str,
    marker: re.Match[str],
    phrases: Sequence[tuple[PhraseSpan, Sequence[PhraseSource]]],
    documents: Mapping[str, str],
) -> tuple[str, PhraseSource | None]:
    """Return the text of the phrase that a marker ends, without it, and its source in the document that is named."""
    in_a_phrase = any(span.start < marker.end() and marker.start() < span.end for span, _ in phrases)
    for span, sources in phrases:
        inside = span.end == marker.end() and span.start < marker.start()
        if not inside and (in_a_phrase or span.end != marker.start()):
            continue
        if inside and any(_stands(text[span.start : span.end], source, documents) for source in sources):
            continue  # the document has the brackets itself
        named = next((source for source in sources if source.document == marker[1]), None)
        if named is not None:
            return text[span.start : min(span.end, marker.start())], named
    return "", None


def _stands(written: str, source: PhraseSource, documents: Mapping[str, str]) -> bool:
    return written.split() == documents[source.document][source.start : source.end].split()
