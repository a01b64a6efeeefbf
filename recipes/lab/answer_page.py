"""Answers in a terminal, and on a web page where each phrase leads to its place in its document, below the answer."""

from collections.abc import Iterable, Mapping, Sequence
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
    leads into one; it then shows its phrase outlined, with those that overlap it. The page needs no script and no other
    file, follows the reader's light or dark setting, and shows all texts escaped.
    """
    sections = []
    for number, answer in enumerate(answers, start=1):
        last = number == len(answers)
        link, told = ("questions", "All questions") if last else (f"answer-{number + 1}", "Next question")
        sections.append(answer_section(answer, number, below=f'<p class="note"><a href="#{link}">{told}</a></p>'))
    listed = (f'<li><a href="#answer-{n}">{shown(one.question)}</a></li>' for n, one in enumerate(answers, start=1))
    questions = "\n".join(['<nav aria-label="Questions" id="questions">\n<ol>', *listed, "</ol>\n</nav>"])
    return page(title, "\n".join([_INTRODUCTION, questions, *sections]))


def answer_section(answer: PageAnswer, number: int = 1, *, opened: bool = False, below: str = "") -> str:
    """Return HTML of an answer whose phrases are links into its documents, which follow it.

    Args:
        number: Of the answer, which tells its links from those of others on the page.
        opened: Whether all documents are open, beside the answer.
        below: HTML after the documents.
    """
    places = {span: source for span in answer.spans if (source := _place(span, answer.documents)) is not None}
    marks = {
        name: _merged(source for source in places.values() if source.document == name) for name in answer.documents
    }
    anchors = {
        (name, *mark): f"answer-{number}-document-{place}-from-{mark[0]}-to-{mark[1]}"
        for place, (name, of_document) in enumerate(marks.items(), start=1)
        for mark in of_document
    }
    parts, end = [], 0
    for span in answer.spans:
        start = first_letter(answer.text, span)
        phrase, source = shown(answer.text[start : span.end]), places.get(span)
        if source is not None:
            document = answer.documents[source.document]["title"]
            told = shown(f"{document}, characters {source.start} to {source.end}")
            mark = next(mark for mark in marks[source.document] if mark[0] <= source.start < mark[1])
            phrase = f'<a href="#{anchors[source.document, *mark]}" title="{told}">{phrase}</a>'
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
        shown_text, end = [], 0
        for start, stop in marks[name]:
            marked = f'<mark id="{anchors[name, start, stop]}">{shown(document["text"][start:stop])}</mark>'
            shown_text += [shown(document["text"][end:start]), marked]
            end = stop
        text = f'<p class="text">{"".join(shown_text)}{shown(document["text"][end:])}</p>'
        back = "" if opened else f'<p class="note"><a href="#answer-{number}">Back to the answer</a></p>'
        heading = f"<summary>[{shown(name)}] {shown(document['title'])}</summary>"
        lines.append("\n".join([f"<details{' open' * opened}>\n{heading}", text, f"{back}\n</details>"]))
    return "\n".join([*lines, below, "</section>"])


def _place(span: PhraseSpan, documents: Mapping[str, Mapping[str, str]]) -> PhraseSource | None:
    """Return the first of a phrase's sources that is among the documents."""
    return next((PhraseSource(*source) for source in span.sources if source.document in documents), None)


def _merged(places: Iterable[PhraseSource]) -> list[tuple[int, int]]:
    """Return the characters [start, end) of places in a document, in order, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for place in sorted(places, key=lambda place: place.start):
        if merged and place.start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], place.end)
        else:
            merged.append((place.start, place.end))
    return merged
