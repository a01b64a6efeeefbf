"""Marked spans of an answer are right, or wrong in one of three ways, as the definition says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets import check_quotes

WORDS = st.text("abcd", min_size=1, max_size=4)
TEXTS = st.lists(WORDS, min_size=6, max_size=12)
KINDS = ("right", "fabricated", "spliced", "misattributed")


def verdicts(answer, documents, **others):
    checked = check_quotes(answer, documents, **others)
    return [kind for kind in KINDS for _ in getattr(checked, kind)]


def upper(words):
    return [word.upper() for word in words]  # documents that share no word


@given(TEXTS, TEXTS, st.data())
def test_a_span_of_a_document_is_right_and_each_change_of_it_is_wrong_in_its_way(first, second, data):
    second = upper(second)
    documents = [" ".join(first), {"title": "T", "text": " ".join(second)}]
    start = data.draw(st.integers(0, len(first) - 2))
    span = first[start : data.draw(st.integers(start + 2, len(first)))]
    other = second[: data.draw(st.integers(2, len(second)))]
    assert verdicts(f'So "{" ".join(span)}" [1].', documents) == ["right"]
    assert verdicts(f'So "{" ".join(span)}" [2].', documents) == ["misattributed"]
    assert verdicts(f'So "{" ".join(span)}" [1][2].', documents) == ["misattributed"]
    assert verdicts(f'So "{" ".join(span)}" [7].', documents) == ["misattributed"]
    assert verdicts(f'So "{" ".join(span + other)}" [1].', documents) == ["spliced"]
    changed = [*span]
    changed[data.draw(st.integers(0, len(span) - 1))] = "changed"
    assert verdicts(f'So "{" ".join(changed)}" [1].', documents) == ["fabricated"]
    phrase = f"so {' '.join(span)}[1]"
    assert verdicts(phrase, documents, phrases=[(3, len(phrase))]) == ["right"]
    assert verdicts(phrase, documents, phrases=[(3, len(phrase) - 3)]) == ["right"]


DOCUMENTS = [
    "The old man\u2019s  boat\u00a0is red, not blue. It sank in 1912.",
    {"title": None, "text": 'They called it ""Jaws"" for years. It is big. A caf\u00e9. \u0939\u093f'},
]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("\u201cthe old man's boat is red,\u201d [1]", ["right"]),
        ('"The old man\u2019s boat\nis red"[1]', ["right"]),
        ('"... boat is red, not blue ..." [1]', ["right"]),
        ('"called it "Jaws" for years" [2]', ["right"]),
        ('"called it ""Jaws"" for years." [2]', ["right"]),
        ("\u00ab boat is red \u00bb [1]", ["right"]),
        ("\u00bbboat is red\u00ab [1], \u201dis red\u201d [1]", ["right", "right"]),
        ('"\u0939" [2]', ["fabricated"]),  # half a word
        ('"called it "Jaws" for 5" years" [2]', ["fabricated"]),
        ('the 5" gun: "It is big" [2], "it" sank [1]', ["right"]),
        ('"is red"[1]"It is big"[2], "is "red" not"[1]', ["right", "right", "fabricated"]),
        ('"the Old man" [1]', ["fabricated"]),
        ('"boat is red not blue" [1]', ["spliced"]),
        ('"oat is red" [1]', ["fabricated"]),
        ('"boat is re" [1]', ["fabricated"]),
        ('"the old man\'s boat ... sank in 1912" [1]', ["spliced"]),
        ('"boat is red[...]It sank in 1912" [1]', ["spliced"]),
        ('"boat is red" and "It is big" [1]', ["misattributed"]),
        ('"boat is red" [0]', ["misattributed"]),
        ('"boat is red" [12]', ["misattributed"]),
        ('"boat is red" [1] [2]', ["misattributed"]),
        ('"a cafe\u0301" [2]', ["right"]),
        ('"boat is red", as some say [1]; "" [1]', []),
    ],
)
def test_white_space_and_kinds_of_marks_do_not_count_and_letters_do(answer, found):
    assert verdicts(answer, iter(DOCUMENTS)) == found


@pytest.mark.parametrize(("answer", "verdict"), [("is red[1]", "right"), ("is red[1]dish", "fabricated")])
def test_a_phrase_whose_word_goes_on_behind_its_marker_is_fabricated(answer, verdict):
    assert getattr(check_quotes(answer, DOCUMENTS, phrases=[(0, 6)]), verdict)


def test_markers_without_a_span_are_counted_and_spans_say_where_they_are():
    checked = check_quotes('It sank [1]. " boat is red "[1][2]', DOCUMENTS)
    [span] = checked.misattributed
    assert (checked.num_other_markers, span.markers, span.text) == (1, (1, 2), "boat is red")
    assert 'It sank [1]. " boat is red "[1][2]'[span.start : span.end] == span.text
    for wrong in ("a", {"1": "a"}, [{"title": "a"}]):
        with pytest.raises(ValueError, match="list"):
            check_quotes("a", wrong)
    titled, answer = [{"title": "The Sea", "text": "It is big."}] * 2, "The Sea[1][2]"
    assert [span.markers for span in check_quotes(answer, titled, phrases=[(0, len(answer))]).right] == [(1, 2)]
    assert check_quotes('"The Sea It is big" [1]', titled).spliced
    both = check_quotes('It sank[1]: "It sank" [1].', DOCUMENTS, phrases=[(0, 10), (12, 25)])
    assert (both.num_other_markers, [span.start for span in both.right]) == (0, [0, 12, 13])
    with pytest.raises(ValueError, match="phrase"):
        check_quotes(answer, titled, phrases=[(0, len(answer) + 1)])
