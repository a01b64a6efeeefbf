"""A generated text with its phrases marked and where each comes from, in a terminal or as a web page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from transformers import PreTrainedTokenizerBase

from hf_targets.figures.page_style import page, printable, shown
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan, PhraseVocabulary

_COLOUR = ("\x1b[1;34m", "\x1b[0m")
_BRACKETS = ("[", "]")
_CONTEXT = 60
_FIRST_PART, _LAST_PART = re.compile(r"^\S*\s+"), re.compile(r"\s+\S*$")
_BODY = """\
<p class="note">The prompt is grey. A marked phrase was generated in one step; its number leads to its source.</p>
<p class="text"><span class="prompt">{prompt}</span>{text}</p>
{statistics}<section role="doc-endnotes" aria-labelledby="sources">
<h2 id="sources">Sources</h2>
{sources}
</section>"""


@dataclass(frozen=True)
class GeneratedText:
    """A prompt, and what a model wrote after it.

    Attributes:
        prompt, text: Characters; special tokens are left out.
        spans: The phrases of `text`, by its characters.
        num_phrases: Phrases that the model could choose from.
        num_steps: Steps that the model took, each of a token or a phrase.
        num_tokens: Tokens that it wrote, phrases counted by theirs.
    """

    prompt: str
    text: str
    spans: tuple[PhraseSpan, ...]
    num_phrases: int
    num_steps: int
    num_tokens: int

    @classmethod
    def of(cls, ids: Sequence[int], prompt_length: int, vocabulary: PhraseVocabulary) -> Self:
        """Return what one row of `generate` says.

        Args:
            ids: Tokens and phrases, (time,), the prompt's first. Padding at the end is left out.
            prompt_length: How many of them are the prompt.
        """
        ids = _without_padding(ids, prompt_length, vocabulary.tokenizer)
        new = ids[prompt_length:]
        prompt = vocabulary.decode(ids[:prompt_length], skip_special_tokens=True)
        # decoded as a whole: some tokenizers drop the space before a text's first word
        text = vocabulary.decode(ids, skip_special_tokens=True)[len(prompt) :]
        found = vocabulary.spans(ids, skip_special_tokens=True)
        spans = [replace(span, start=span.start - len(prompt), end=span.end - len(prompt)) for span in found]
        after = tuple(span for span in spans if span.start >= 0)
        return cls(prompt, text, after, len(vocabulary), len(new), len(vocabulary.expand(new)))

    @property
    def statistics(self) -> str:
        """The numbers in one line, with their units."""
        cited = {source.document for span in self.spans for source in span.sources}
        documents = f"{len(cited):,} {'document' if len(cited) == 1 else 'documents'}"
        rate = self.num_tokens / self.num_steps if self.num_steps else 0.0
        return (
            f"{self.num_phrases:,} phrases at hand, {len(self.spans):,} used; {self.num_tokens:,} tokens in "
            f"{self.num_steps:,} steps, {rate:.2f} tokens a step; {documents} cited"
        )


def mark_in_terminal(text: str, spans: Sequence[PhraseSpan], *, colour: bool = True) -> str:
    """Return a text whose phrases are bold and blue in a terminal, or in brackets; it has no other control characters.

    Args:
        spans: The phrases of the text, from `PhraseVocabulary.spans`.
        colour: Whether the text goes to a terminal; brackets mark phrases in a file or a pipe.

    >>> mark_in_terminal("on the mat", [PhraseSpan(2, 10, 9, " the mat", ())], colour=False)
    'on [the mat]'
    """
    opening, closing = _COLOUR if colour else _BRACKETS
    parts, end = [], 0
    for span in spans:
        start = first_letter(text, span)
        parts += [printable(text[end:start]), opening, printable(text[start : span.end]), closing]
        end = span.end
    return "".join([*parts, printable(text[end:])])


def list_sources(spans: Sequence[PhraseSpan]) -> str:
    """Return a line for each phrase, in the order of the text, with the first position that it comes from.

    >>> from hf_targets.phrases.vocabulary.sources import PhraseSource
    >>> list_sources([PhraseSpan(2, 10, 9, " the mat", (PhraseSource("cat.txt", 11, 18),))])
    '1. the mat: cat.txt, characters 11 to 18'
    """
    return "\n".join(
        printable(f"{number}. {' '.join(span.text.split())}: {' '.join(source_of(span).split())}")
        for number, span in enumerate(spans, start=1)
    )


def source_of(span: PhraseSpan) -> str:
    """Return in words where a phrase comes from."""
    if not span.sources:
        return "from a list of phrases"
    first, num_others = span.sources[0], len(span.sources) - 1
    others = f", and {num_others} more {'time' if num_others == 1 else 'times'}" if num_others else ""
    return f"{first.document}, characters {first.start} to {first.end}{others}"


def first_letter(text: str, span: PhraseSpan) -> int:
    """Return the index of the first character of a phrase that is no white space; its end if there is none."""
    return span.end - len(text[span.start : span.end].lstrip())


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
        spans: The phrases of the text, from `PhraseVocabulary.spans`.
        documents: Texts by id, for the words around each phrase in its source.
        statistics: A line below the text, such as `GeneratedText.statistics`.
        footer: A last line, such as the command.
        language: Of the text, a tag of BCP 47 such as "de".
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
    if not 0 <= first.start < first.end <= len(document):
        raise ValueError(
            f"{span.text!r} comes from characters [{first.start}, {first.end}) of document {first.document!r}, which "
            f"has {len(document)}; give the documents that the phrases were found in"
        )
    begin, stop = max(0, first.start - _CONTEXT), first.end + _CONTEXT
    before, after = document[begin : first.start], document[first.end : stop]
    if begin:
        before = f"\u2026{_FIRST_PART.sub('', before)}"  # a word that is cut is left out
    if stop < len(document):
        after = f"{_LAST_PART.sub('', after)}\u2026"
    cited = f"<b>{shown(document[first.start : first.end])}</b>"
    return f"<q>{shown(before)}{cited}{shown(after)}</q> &mdash; {where}"


def _without_padding(ids: Sequence[int], prompt_length: int, tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    """Return a row without the padding after its text; a tokenizer without a pad token pads with its end token."""
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    pad = end if pad is None else pad
    length = len(ids)
    while length > prompt_length and ids[length - 1] == pad:
        length -= 1
    ends_text = pad == end and length < len(ids)  # the first of them is no padding
    return ids[: length + ends_text]
