import re

from hf_targets.phrases.highlighting import list_sources, mark_in_terminal
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan

TEXT = "a <b> on the mat & more"
SPANS = [
    PhraseSpan(1, 5, 300, " <b>", ()),
    PhraseSpan(5, 16, 301, " on the mat", (PhraseSource("mats.txt", 10, 20), *[PhraseSource("other.txt", 0, 10)] * 2)),
]


def test_without_its_marks_the_terminal_text_is_the_text():
    marked = mark_in_terminal(TEXT, SPANS)
    assert re.sub(r"\x1b\[[0-9;]*m", "", marked) == TEXT
    assert "\x1b[1;34mon the mat\x1b[0m" in marked


def test_where_there_are_no_colours_phrases_are_in_brackets():
    assert mark_in_terminal(TEXT, SPANS, colour=False) == "a [<b>] [on the mat] & more"


def test_each_phrase_is_listed_in_one_line_with_its_first_source():
    broken = PhraseSpan(0, 9, 302, "\non  the\tmat", ())
    assert list_sources([*SPANS, broken]).splitlines() == [
        "1. <b>: from a list of phrases",
        "2. on the mat: mats.txt, characters 10 to 20, and 2 more times",
        "3. on the mat: from a list of phrases",
    ]
