"""A generated text as a web page, complete in itself: its phrases marked and linked to their sources."""

import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from hf_targets.phrases.highlighting import first_letter, source_of
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

_CONTEXT = 60
_NOT_IN_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_FIRST_PART, _LAST_PART = re.compile(r"^\S*\s+"), re.compile(r"\s+\S*$")
_PAGE = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --page: #fff; --text: #1f2328; --quiet: #59636e; --mark: #dbe9ff; --marked: #0b3d91; --line: #d1d9e0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #15181d; --text: #e6e8eb; --quiet: #a3acb8; --mark: #1c3a68; --marked: #d5e5ff; --line: #3a424d; }}
}}
body {{ background: var(--page); color: var(--text); font: 1.0625rem/1.65 Georgia, "Times New Roman", serif;
  max-width: 44rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.35rem; line-height: 1.3; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.text {{ white-space: pre-wrap; }}
.prompt, .note, footer {{ color: var(--quiet); }}
.note, ol, footer {{ font: .9rem/1.55 system-ui, sans-serif; }}
ol {{ padding-left: 2rem; }}
li {{ margin-bottom: .6rem; }}
mark {{ background: var(--mark); border-radius: .2rem; padding: .1rem 0; box-decoration-break: clone;
  -webkit-box-decoration-break: clone; }}
mark, mark a, b {{ color: var(--marked); }}
mark a {{ text-decoration: none; }}
mark a:hover {{ text-decoration: underline; }}
sup {{ font: .65em/1 system-ui, sans-serif; padding-left: .1em; }}
li > a {{ color: var(--marked); padding: 0 .4rem; }}
a:focus-visible {{ outline: .15rem solid var(--marked); outline-offset: .1rem; border-radius: .2rem; }}
:target {{ outline: .12rem solid var(--marked); outline-offset: .15rem; scroll-margin: 4rem; }}
footer {{ border-top: 1px solid var(--line); margin-top: 2rem; padding-top: .8rem; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="note">The prompt is grey. A marked phrase was generated in one step; its number leads to its source.</p>
<p class="text"><span class="prompt">{prompt}</span>{text}</p>
{statistics}<section role="doc-endnotes" aria-labelledby="sources">
<h2 id="sources">Sources</h2>
{sources}
</section>
</main>
{footer}</body>
</html>
"""


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
    Source: Liu et al., "Generation with Dynamic Vocabulary", figure 3.
    """
    parts, sources, end = [], [], 0
    for number, span in enumerate(spans, start=1):
        start = first_letter(text, span)
        link = f'<a href="#source-{number}" role="doc-noteref" title="{_shown(source_of(span))}">'
        phrase = f"{_shown(text[start : span.end])}<sup>{number}</sup>"
        parts += [_shown(text[end:start]), f'<mark id="phrase-{number}">{link}{phrase}</a></mark>']
        back = f'<a href="#phrase-{number}" role="doc-backlink" aria-label="Back to phrase {number}">&#8617;</a>'
        sources.append(f'<li id="source-{number}">{_source(span, documents or {})} {back}</li>')
        end = span.end
    parts.append(_shown(text[end:]))
    lines = "\n".join(sources)
    return _PAGE.format(
        title=_shown(title),
        language=escape(language),
        prompt=_shown(prompt),
        text="".join(parts),
        statistics=f'<p class="note">{_shown(statistics)}</p>\n' if statistics else "",
        sources=f"<ol>\n{lines}\n</ol>" if sources else '<p class="note">No phrase was used.</p>',
        footer=f"<footer>{_shown(footer)}</footer>\n" if footer else "",
    )


def shown_command(arguments: Sequence[str]) -> str:
    """Return a command line in which absolute paths are their last parts alone, to be shown to others.

    >>> shown_command(["generate.py", "--model", "/home/me/runs/ours", "--html=/tmp/a b.html"])
    "python generate.py --model ours '--html=a b.html'"
    """
    shown = []
    for argument in arguments:
        name, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        path = Path(value).expanduser() if value.startswith("~") else Path(value)
        shown.append(f"{name}{equals}{path.name if path.is_absolute() else value}")
    return shlex.join(["python", *shown])


def _shown(text: str) -> str:
    """Return a text escaped, with a sign in place of characters that a page may not have."""
    return escape(_NOT_IN_HTML.sub("\ufffd", text))


def _source(span: PhraseSpan, documents: Mapping[str, str]) -> str:
    where = _shown(source_of(span))
    document = documents.get(span.sources[0].document) if span.sources else None
    if document is None:
        return f"<b>{_shown(span.text.strip())}</b> &mdash; {where}"
    first = span.sources[0]
    begin, stop = max(0, first.start - _CONTEXT), first.end + _CONTEXT
    before, after = document[begin : first.start], document[first.end : stop]
    if begin:
        before = f"\u2026{_FIRST_PART.sub('', before)}"  # a word that is cut is left out
    if stop < len(document):
        after = f"{_LAST_PART.sub('', after)}\u2026"
    cited = f"<b>{_shown(document[first.start : first.end])}</b>"
    return f"<q>{_shown(before)}{cited}{_shown(after)}</q> &mdash; {where}"
