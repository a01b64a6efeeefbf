"""A generated text with its phrases marked, and where each comes from: in a terminal, and as a page of its own."""

from collections.abc import Mapping, Sequence
from html import escape

from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

_MARK, _PLAIN = "\x1b[1;34m", "\x1b[0m"
_CONTEXT = 60
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 17px/1.6 Georgia, serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.3rem; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.prompt {{ color: #777; }}
mark {{ background: #dbe9ff; color: #0b3d91; border-radius: 3px; padding: 1px 0; }}
mark sup {{ font-size: .6em; padding-left: 1px; }}
ol {{ font-size: .85rem; color: #444; }}
q {{ color: #222; }}
b {{ color: #0b3d91; }}
footer {{ font-size: .8rem; color: #777; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="text"><span class="prompt">{prompt}</span>{text}</p>
<ol>
{sources}
</ol>
<footer>{footer}</footer>
</body>
</html>
"""


def mark_in_terminal(text: str, spans: Sequence[PhraseSpan]) -> str:
    """Return a text whose phrases are bold and blue in a terminal.

    >>> mark_in_terminal("on the mat", [PhraseSpan(2, 10, 9, " the mat", ())])
    'on \\x1b[1;34mthe mat\\x1b[0m'
    """
    parts, end = [], 0
    for span in spans:
        start = _first_letter(text, span)
        parts += [text[end:start], _MARK, text[start : span.end], _PLAIN]
        end = span.end
    return "".join([*parts, text[end:]])


def phrase_page(
    prompt: str,
    text: str,
    spans: Sequence[PhraseSpan],
    documents: Mapping[str, str] | None = None,
    *,
    title: str = "Generated with phrases",
    footer: str = "",
) -> str:
    """Return an HTML page, complete in itself, of a text whose phrases are marked and numbered, with their sources.

    Args:
        prompt: What came before the text.
        text: Generated.
        spans: Its phrases, from `PhraseVocabulary.spans`.
        documents: Texts by id, for the words around each phrase in its source.
        footer: A last line, such as the command.
    Source: Liu et al., "Generation with Dynamic Vocabulary", figure 3.
    """
    parts, sources, end = [], [], 0
    for number, span in enumerate(spans, start=1):
        start = _first_letter(text, span)
        where = "; ".join(f"{source.document}, {source.start}-{source.end}" for source in span.sources)
        marked = f'<mark title="{escape(where)}">{escape(text[start : span.end])}<sup>{number}</sup></mark>'
        parts += [escape(text[end:start]), marked]
        sources.append(f"<li>{_source(span, documents or {})}</li>")
        end = span.end
    parts.append(escape(text[end:]))
    return _PAGE.format(
        title=escape(title),
        prompt=escape(prompt),
        text="".join(parts),
        sources="\n".join(sources),
        footer=escape(footer),
    )


def _first_letter(text: str, span: PhraseSpan) -> int:
    phrase = text[span.start : span.end]
    return span.end - len(phrase.lstrip())


def _source(span: PhraseSpan, documents: Mapping[str, str]) -> str:
    phrase = escape(span.text.strip())
    if not span.sources:
        return f"<b>{phrase}</b>"
    source = span.sources[0]
    others = f", and {len(span.sources) - 1} more places" if len(span.sources) > 1 else ""
    place = f"{escape(source.document)}, characters {source.start} to {source.end}{others}"
    document = documents.get(source.document)
    if document is None:
        return f"<b>{phrase}</b> &mdash; {place}"
    before = escape(document[max(0, source.start - _CONTEXT) : source.start])
    after = escape(document[source.end : source.end + _CONTEXT])
    cited = escape(document[source.start : source.end])
    return f"<q>&hellip;{before}<b>{cited}</b>{after}&hellip;</q> &mdash; {place}"
