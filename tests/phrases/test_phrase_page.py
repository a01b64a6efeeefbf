import re
from html import unescape
from html.parser import HTMLParser

import pytest

from hf_targets.phrases.highlighting import phrase_page
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

TEXT = "a <b> on the mat & more"
DOCUMENT = "It sat <i>on the mat</i> all day."
SPANS = [
    PhraseSpan(1, 5, 300, " <b>", ()),
    PhraseSpan(5, 16, 301, " on the mat", (PhraseSource("mats.txt", 10, 20), PhraseSource("other.txt", 0, 10))),
]
PAGE = phrase_page("The cat <", TEXT, SPANS, {"mats.txt": DOCUMENT}, title="T & T", statistics="3 > 2", footer="a <b>")
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Reads a page, and refuses tags that do not close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.tags = [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]


def shown_text(page: str) -> str:
    shown = re.search(r'<p class="text">(.*?)</p>', page, re.S)
    assert shown is not None
    return unescape(re.sub(r"<sup>\d+</sup>|<[^>]+>", "", shown[1]))


def test_the_page_holds_the_text_escaped_and_each_phrase_with_its_source():
    assert shown_text(PAGE) == "The cat <" + TEXT
    assert "<b>on the mat</b>" in PAGE
    assert "<q>It sat &lt;i&gt;" in PAGE  # from the document's first character: nothing is left out before it
    assert "mats.txt, characters 10 to 20, and 1 more time" in PAGE
    assert "from a list of phrases" in PAGE
    assert "<title>T &amp; T</title>" in PAGE
    assert "3 &gt; 2</p>" in PAGE and "<footer>a &lt;b&gt;</footer>" in PAGE


@pytest.mark.parametrize("page", [PAGE, phrase_page("p", TEXT, [])], ids=["phrases", "none"])
def test_the_page_is_html_with_its_tags_in_order(page):
    assert page.startswith('<!doctype html>\n<html lang="en">') and Page(page).tags


def test_every_phrase_leads_to_its_source_and_every_source_back():
    read = Page(PAGE)
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    links = [attributes for tag, attributes in read.tags if tag == "a"]
    assert {link["href"] for link in links} == {f"#{id_}" for id_ in ids if id_ != "sources"}
    assert [(link["role"], link["href"]) for link in links] == [
        ("doc-noteref", "#source-1"),
        ("doc-noteref", "#source-2"),
        ("doc-backlink", "#phrase-1"),
        ("doc-backlink", "#phrase-2"),
    ]
    assert all(link["role"] == "doc-noteref" or link["aria-label"].startswith("Back to phrase") for link in links)


def test_the_page_needs_nothing_else():
    page = phrase_page("p", TEXT, SPANS)
    assert not re.search(r"<script|<link|https?://|src=|@import|url\(", page)
    assert page.count("<mark") == page.count("<li") == len(SPANS)


def test_the_words_around_a_phrase_are_whole_and_marked_where_the_document_goes_on():
    document = f"{'long ' * 20}on the mat{' wide' * 20}"
    span = PhraseSpan(0, 10, 301, "on the mat", (PhraseSource("d", 100, 110),))
    quoted = re.search(r"<q>(.*)</q>", phrase_page("", "on the mat", [span], {"d": document}))
    assert quoted is not None
    assert quoted[1] == f"\u2026{'long ' * 11}<b>on the mat</b>{' wide' * 11}\u2026"
