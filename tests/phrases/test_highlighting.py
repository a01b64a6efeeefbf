import re
from html import unescape

from hf_targets.phrases.highlighting import mark_in_terminal, phrase_page
from hf_targets.phrases.vocabulary.vocabulary import PhraseSource, PhraseSpan

TEXT = "a <b> on the mat & more"
DOCUMENT = "It sat <i>on the mat</i> all day."
SPANS = [
    PhraseSpan(1, 5, 300, " <b>", ()),
    PhraseSpan(5, 16, 301, " on the mat", (PhraseSource("mats.txt", 10, 20), PhraseSource("other.txt", 0, 10))),
]


def test_without_its_marks_the_terminal_text_is_the_text():
    marked = mark_in_terminal(TEXT, SPANS)
    assert re.sub(r"\x1b\[[0-9;]*m", "", marked) == TEXT
    assert "\x1b[1;34mon the mat\x1b[0m" in marked


def test_the_page_holds_the_text_escaped_and_each_phrase_with_its_source():
    page = phrase_page("The cat <", TEXT, SPANS, {"mats.txt": DOCUMENT}, title="T & T", footer="python x")
    shown = re.search(r'<p class="text">(.*?)</p>', page, re.S)[1]
    plain = unescape(re.sub(r"<sup>\d+</sup>|<[^>]+>", "", shown))
    assert plain == "The cat <" + TEXT
    assert "<b>on the mat</b>" in page
    assert "It sat &lt;i&gt;" in page
    assert "mats.txt, characters 10 to 20, and 1 more places" in page
    assert "<title>T &amp; T</title>" in page


def test_the_page_needs_nothing_else():
    page = phrase_page("p", TEXT, SPANS)
    assert not re.search(r"<script|<link|https?://|src=", page)
    assert page.count("<mark") == page.count("<li>") == len(SPANS)
