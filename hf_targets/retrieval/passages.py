"""Documents cut into passages whose ids say where each comes from."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from hf_targets.retrieval.documents import check_documents

_FRAGMENT = re.compile(r"(.*)#char=([0-9]+),([0-9]+)", re.DOTALL)


class Passage(NamedTuple):
    """The characters [start, end) of a document.

    >>> Passage("law", 10, 25).id
    'law#char=10,25'
    >>> Passage.parse("law#char=10,25")
    Passage(document='law', start=10, end=25)

    Source: of the form of ids, RFC 5147, "URI Fragment Identifiers for the text/plain Media Type".
    """

    document: str
    start: int
    end: int

    @property
    def id(self) -> str:
        """The id of the passage, from which `parse` gets it back, whatever characters the document's name has."""
        return f"{self.document}#char={self.start},{self.end}"

    @classmethod
    def parse(cls, passage_id: str) -> "Passage":
        """Return the passage with an id; a ValueError if it is not the id of one."""
        match = _FRAGMENT.fullmatch(passage_id)
        if match is None:
            raise ValueError(
                f"the id of a passage must end with #char=START,END, as of passages_of, got {passage_id!r}"
            )
        return cls(match[1], int(match[2]), int(match[3]))


def passages_of(documents: Mapping[str, str], num_words: int = 100, overlap: int = 0) -> dict[str, str]:
    """Return the passages of documents by their ids; a passage is the part of the text that its id says.

    A passage has `num_words` words, the last one of a document perhaps fewer. It begins with a word, except for white
    space at the beginning of a document, and has the white space after its words: without overlap the passages of a
    document, put together, are the document. Text without white space between words, such as Chinese, is not cut.

    >>> passages_of({"law": "The court may grant leave."}, num_words=3)
    {'law#char=0,14': 'The court may ', 'law#char=14,26': 'grant leave.'}

    Args:
        documents: Texts by id.
        num_words: White-space words of a passage.
        overlap: Words at the end of a passage with which the next one begins.
    Raises:
        ValueError: If there is no document, one has no text, `num_words` is below 1, or `overlap` is not in
            [0, num_words).
    Source: of the length, Karpukhin et al., "Dense Passage Retrieval", section 4.1.
    """
    if not 0 <= overlap < num_words:
        raise ValueError(f"num_words must be 1 or more and overlap in [0, num_words), got {num_words} and {overlap}")
    check_documents(documents)
    passages = {}
    for name, text in documents.items():
        starts = [match.start() for match in re.finditer(r"\S+", text)]
        cuts = [0, *starts[1:], len(text)]
        for first in range(0, max(1, len(starts) - overlap), num_words - overlap):
            passage = Passage(name, cuts[first], cuts[min(first + num_words, len(starts))])
            passages[passage.id] = text[passage.start : passage.end]
    return passages


def source_in_document(passage_id: str, start: int, end: int) -> Passage:
    """Return the characters of the document for the characters [start, end) of a passage.

    >>> source_in_document("law#char=14,26", 0, 5)
    Passage(document='law', start=14, end=19)

    Raises:
        ValueError: If `passage_id` is not the id of a passage, or the characters are not in it.
    """
    passage = Passage.parse(passage_id)
    if not 0 <= start <= end <= passage.end - passage.start:
        length = passage.end - passage.start
        raise ValueError(f"characters must be in [0, {length}) of passage {passage_id!r}, got [{start}, {end})")
    return Passage(passage.document, passage.start + start, passage.start + end)
