"""A generated text as a web page, complete in itself: its phrases marked and linked to their sources."""

import re
from collections.abc import Mapping, Sequence

from hf_targets.figures.page_style import page, shown
from hf_targets.phrases.highlighting import check_source, first_letter, source_of
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

_CONTEXT = 60
_FIRST_PART, _LAST_PART = re.compile(r"^\S*\s+"), re.compile(r"\s+\S*$")
_BODY = """\
<p class="note">The prompt is grey. A marked phrase was generated in one step; its number leads to its source.</p>
<p class="text"><span class="prompt">{prompt}</span>{text}</p>
{statistics}<section role="doc-endnotes" aria-labelledby="sources">
<h2 id="sources">Sources</h2>
{sources}
</section>"""


def phrase_page(
    prompt: str,
    text: str,
    spans: Sequence[PhraseSpan],
    documents: Mapping[str, str] | None = None,
    *,
    title: str = "Generated with phrases",
    statistics: str = "",
    footer: str = "",
    language: str = "en",
) -> str:
    """Return an HTML page, complete in itself, of a text whose phrases are marked, numbered and linked to sources.

    It needs no script and no other file, follows the reader's light or dark setting, and shows all texts escaped.

    Args:
        prompt: What came before the text.
        text: Generated.
        spans: Its phrases, from `PhraseVocabulary.spans`.
        documents: Texts by id, for the words around each phrase in its source.
        statistics: A line below the text, such as `GeneratedText.statistics`.
        footer: A last line, such as `shown_command`.
        language: Of the text, a tag of BCP 47 such as "de".
    Raises:
        ValueError: If a source is outside its document.
    Source: Liu et al., "Generation with Dynamic Vocabulary", figure 3.
    """
    parts, sources, end = [], [], 0
    for number, span in enumerate(spans, start=1):
        start = first_letter(text, span)
        link = f'<a href="#source-{number}" role="doc-noteref" title="{shown(source_of(span))}">'
        phrase = f"{shown(text[start : span.end])}<sup>{number}</sup>"
        parts += [shown(text[end:start]), f'<mark id="phrase-{number}">{link}{phrase}</a></mark>']
        back = f'<a href="#phrase-{number}" role="doc-backlink" aria-label="Back to phrase {number}">&#8617;</a>'
        sources.append(f'<li id="source-{number}">{_source(span, documents or {})} {back}</li>')
        end = span.end
    parts.append(shown(text[end:]))
    lines = "\n".join(sources)
    told = f'<p class="note">{shown(statistics)}</p>\n' if statistics else ""
    listed = f"<ol>\n{lines}\n</ol>" if sources else '<p class="note">No phrase was used.</p>'
    body = _BODY.format(prompt=shown(prompt), text="".join(parts), statistics=told, sources=listed)
    return page(title, body, footer=footer, language=language)


def _source(span: PhraseSpan, documents: Mapping[str, str]) -> str:
    where = shown(source_of(span))
    document = documents.get(span.sources[0].document) if span.sources else None
    if document is None:
        return f"<b>{shown(span.text.strip())}</b> &mdash; {where}"
    first = span.sources[0]
    check_source(span, first, document)
    begin, stop = max(0, first.start - _CONTEXT), first.end + _CONTEXT
    before, after = document[begin : first.start], document[first.end : stop]
    if begin:
        before = f"\u2026{_FIRST_PART.sub('', before)}"  # a word that is cut is left out
    if stop < len(document):
        after = f"{_LAST_PART.sub('', after)}\u2026"
    cited = f"<b>{shown(document[first.start : first.end])}</b>"
    return f"<q>{shown(before)}{cited}{shown(after)}</q> &mdash; {where}"
