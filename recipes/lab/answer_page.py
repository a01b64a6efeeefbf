"""Answers in a terminal, and on a web page where each phrase leads to its place in its document, below the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hf_targets.figures.page_style import page, printable, shown
from hf_targets.phrases.highlighting import first_letter, list_sources, mark_in_terminal
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

_INTRODUCTION = """<p class="note">A marked phrase was generated in one step. It leads to its place in its document,
below the answer.</p>"""


@dataclass(frozen=True)
class PageAnswer:
    """A question, its answer with phrases that name documents (`title` and `text`), a line and a table below it."""

    question: str
    text: str
    spans: Sequence[PhraseSpan]
    documents: Mapping[str, Mapping[str, str]]
    note: str = ""
    table: Sequence[Sequence[str]] = ()


def answer_in_terminal(answer: PageAnswer, *, colour: bool) -> str:
    """Return a question, its answer with its phrases marked by colour or brackets, and a line for each one's source."""
    titles = {name: f"[{name}] {document['title']}" for name, document in answer.documents.items()}
    places = [(span, _place(span, answer.documents)) for span in answer.spans]
    sources = ((span, () if one is None else (one._replace(document=titles[one.document]),)) for span, one in places)
    spans = [replace(span, sources=named) for span, named in sources]
    lines = [printable(f"Question: {answer.question}"), mark_in_terminal(answer.text, answer.spans, colour=colour)]
    return "\n".join([*lines, *[list_sources(spans)] * bool(spans)])


def answer_page(answers: Sequence[PageAnswer], title: str = "Answers with citations") -> str:
    """Return an HTML page, complete in itself, of answers whose phrases are links to where their documents have them.

    It begins with a list of the questions, and each answer leads to the next one. The documents are closed until a link
    leads into one; it then shows its phrase outlined. Where cited phrases of a document overlap without one holding the
    other, the document is shown once more for the next ones, so that each phrase is marked as a whole. The page needs
    no script and no other file, follows the reader's light or dark setting, and shows all texts escaped.
    """
    sections = [_section(number, answer, len(answers)) for number, answer in enumerate(answers, start=1)]
    listed = (f'<li><a href="#answer-{n}">{shown(one.question)}</a></li>' for n, one in enumerate(answers, start=1))
    questions = "\n".join(['<nav aria-label="Questions" id="questions">\n<ol>', *listed, "</ol>\n</nav>"])
    return page(title, "\n".join([_INTRODUCTION, questions, *sections]))


def _section(number: int, answer: PageAnswer, num_answers: int) -> str:
    places = {span: source for span in answer.spans if (source := _place(span, answer.documents)) is not None}
    names = list(answer.documents)

    def anchor(source: PhraseSource) -> str:
        return f"answer-{number}-document-{names.index(source.document) + 1}-from-{source.start}-to-{source.end}"

    parts, end = [], 0
    for span in answer.spans:
        start = first_letter(answer.text, span)
        phrase, source = shown(answer.text[start : span.end]), places.get(span)
        if source is not None:
            document = answer.documents[source.document]["title"]
            told = shown(f"{document}, characters {source.start} to {source.end}")
            phrase = f'<a href="#{anchor(source)}" title="{told}">{phrase}</a>'
        parts += [shown(answer.text[end:start]), f"<mark>{phrase}</mark>"]
        end = span.end
    parts.append(shown(answer.text[end:]))
    lines = [
        f'<section id="answer-{number}" aria-labelledby="question-{number}">',
        f'<h2 id="question-{number}">{shown(answer.question)}</h2>',
        f'<p class="text">{"".join(parts)}</p>',
    ]
    lines += [f'<p class="note">{shown(answer.note)}</p>'] * bool(answer.note)
    if answer.table:
        rows = ("".join(f"<td>{shown(cell)}</td>" for cell in row) for row in answer.table)
        lines.append(f"<table>\n{''.join(f'<tr>{row}</tr>' for row in rows)}\n</table>")
    for name, document in answer.documents.items():
        cited = {source for source in places.values() if source.document == name}
        copies = _copies(cited) or [[]]
        texts = (f'<p class="text">{_marked(document["text"], copy, anchor)}</p>' for copy in copies)
        back = f'<p class="note"><a href="#answer-{number}">Back to the answer</a></p>'
        heading = f"<summary>[{shown(name)}] {shown(document['title'])}</summary>"
        lines.append("\n".join([f"<details>\n{heading}", *texts, f"{back}\n</details>"]))
    following = ("questions", "All questions") if number == num_answers else (f"answer-{number + 1}", "Next question")
    lines.append(f'<p class="note"><a href="#{following[0]}">{following[1]}</a></p>')
    return "\n".join([*lines, "</section>"])


def _place(span: PhraseSpan, documents: Mapping[str, Mapping[str, str]]) -> PhraseSource | None:
    """Return the first of a phrase's sources that is among the documents."""
    return next((PhraseSource(*source) for source in span.sources if source.document in documents), None)


def _copies(places: set[PhraseSource]) -> list[list[PhraseSource]]:
    """Return the places in a document in as few lists as they are put into one by one, with no two crossing in a list.

    Of two places in a list one holds the other or they are apart. In a list they are in the order of their first
    characters, the longer one first.
    """
    copies: list[list[PhraseSource]] = []
    for place in sorted(places, key=lambda place: (place.start, -place.end)):
        for copy in copies:
            if not any(other.start < place.start < other.end < place.end for other in copy):
                copy.append(place)
                break
        else:
            copies.append([place])
    return copies


def _marked(text: str, places: Sequence[PhraseSource], anchor: Callable[[PhraseSource], str]) -> str:
    """Return a document with marks at its places, those inside others nested."""
    parts, end = [], 0
    open_ends: list[int] = []

    def close_until(position: int) -> None:
        nonlocal end
        while open_ends and open_ends[-1] <= position:
            parts.append(f"{shown(text[end : open_ends[-1]])}</mark>")
            end = open_ends.pop()

    for place in places:
        close_until(place.start)
        parts.append(f'{shown(text[end : place.start])}<mark id="{anchor(place)}">')
        end = place.start
        open_ends.append(place.end)
    close_until(len(text))
    return "".join([*parts, shown(text[end:])])
