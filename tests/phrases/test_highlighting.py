"""Texts with their phrases marked, in a terminal and on a page, and what is told of them."""

import re
from html import unescape
from html.parser import HTMLParser

from hf_targets.phrases.highlighting import GeneratedText, list_sources, mark_in_terminal, phrase_page
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan, PhraseVocabulary
from tests.phrases.models import WORDS
from tests.tiny_models import VOCAB

TEXT = "a <b> on the mat & more"
SPANS = [
    PhraseSpan(1, 5, 300, " <b>", ()),
    PhraseSpan(5, 16, 301, " on the mat", (PhraseSource("mats.txt", 10, 20), *[PhraseSource("other.txt", 0, 10)] * 2)),
]


def test_without_its_marks_the_terminal_text_is_the_text():
    marked = mark_in_terminal(TEXT, SPANS)
    assert re.sub(r"\x1b\[[0-9;]*m", "", marked) == TEXT
    assert "\x1b[1;34mon the mat\x1b[0m" in marked


def test_control_characters_of_texts_and_names_reach_neither_terminal_nor_page():
    text = "a\x1b[2J on\r\x9b the mat"
    span = PhraseSpan(5, 18, 300, text[5:18], (PhraseSource("a\x1b]0;me\x07\rb.txt", 0, 9),))
    for told in (mark_in_terminal(text, [span], colour=False), list_sources([span]), phrase_page(text, text, [span])):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", told)
    assert len(list_sources([span]).splitlines()) == 1


DOCUMENT = "It sat <i>on the mat</i> all day."
PAGE = phrase_page("The cat <", TEXT, SPANS, {"mats.txt": DOCUMENT}, title="T & T", statistics="3 > 2", footer="a <b>")


def test_the_page_holds_the_text_escaped_and_each_phrase_with_its_source():
    [shown] = re.findall(r'<p class="text">(.*?)</p>', PAGE, re.S)
    assert unescape(re.sub(r"<sup>\d+</sup>|<[^>]+>", "", shown)) == "The cat <" + TEXT
    assert "<b>on the mat</b>" in PAGE
    assert "<q>It sat &lt;i&gt;" in PAGE  # from the document's first character: nothing is left out before it
    assert "mats.txt, characters 10 to 20, and 2 more times" in PAGE
    assert "from a list of phrases" in PAGE
    assert "<title>T &amp; T</title>" in PAGE
    assert "3 &gt; 2</p>" in PAGE and "<footer>a &lt;b&gt;</footer>" in PAGE


def test_the_words_around_a_phrase_are_whole_and_marked_where_the_document_goes_on():
    document = f"{'long ' * 20}on the mat{' wide' * 20}"
    span = PhraseSpan(0, 10, 301, "on the mat", (PhraseSource("d", 100, 110),))
    quoted = re.search(r"<q>(.*)</q>", phrase_page("", "on the mat", [span], {"d": document}))
    assert quoted is not None
    assert quoted[1] == f"\u2026{'long ' * 11}<b>on the mat</b>{' wide' * 11}\u2026"


class Tags(HTMLParser):
    """Reads the tags of a page, and refuses those that do not close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.tags = [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in {"meta", "br"})

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_whole_html_and_each_phrase_and_its_source_lead_to_each_other():
    assert Tags(phrase_page("p", TEXT, [])).tags
    assert not re.search(r"<script|<link|https?://|src=|@import|url\(", PAGE)
    tags = Tags(PAGE).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids)) == 5
    links = [(attributes["role"], attributes["href"]) for tag, attributes in tags if tag == "a"]
    assert links == [
        *(("doc-noteref", f"#source-{number}") for number in (1, 2)),
        *(("doc-backlink", f"#phrase-{number}") for number in (1, 2)),
    ]


PHRASES = PhraseVocabulary(WORDS, vocab_size=VOCAB)
FIRST, SECOND, OTHER = PHRASES.add_token_ids(
    [[2, 3], [4, 5, 6], [7, 8]],
    sources=[[PhraseSource("a.txt", 0, 7)], [PhraseSource("a.txt", 9, 20), PhraseSource("b.txt", 0, 11)], []],
)


def test_spans_are_of_the_text_without_its_prompt_and_the_prompts_phrases_are_none_of_them():
    written = GeneratedText.of([9, OTHER, 10, FIRST, 11, SECOND], 3, PHRASES)
    assert written.prompt + written.text == PHRASES.decode([9, OTHER, 10, FIRST, 11, SECOND])
    assert [written.text[span.start : span.end] for span in written.spans] == [" w02 w03", " w04 w05 w06"]


def test_padding_at_the_end_does_not_count():
    pad, end = WORDS.pad_token_id, WORDS.eos_token_id
    padding = end if pad is None else pad
    row = [9, 10, FIRST, 11, end]
    assert GeneratedText.of([*row, padding, padding], 2, PHRASES) == GeneratedText.of(row, 2, PHRASES)
    assert GeneratedText.of([9, 10, padding], 3, PHRASES).num_steps == 0  # of the prompt
