"""Long answers are measured as the published program measures them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.evaluation.answers import (
    check_references,
    measure_answers,
    normalized_answer,
    short_answers_found,
    token_f1,
)
from hf_targets.evaluation.sentences import train_splitter

SPLIT = train_splitter([])
ITEMS = [
    {
        "qa_pairs": [
            {"question": "When?", "short_answers": ["June 28, 2003", "28 June 2003"]},
            {"question": "Where?", "short_answers": ["Anaheim"]},
        ],
        "annotations": [{"long_answer": "It opened in June 2003."}, {"long_answer": "It opened in Anaheim. Indeed."}],
    },
    {
        "qa_pairs": [{"question": "Who?", "short_answers": ["The Beatles"]}],
        "annotations": [{"long_answer": "The Beatles sang it."}],
    },
]
ANSWERS = ["It opened in Anaheim [1]. Indeed.\nMore.", "the beatles! [2"]


def test_a_short_answer_is_found_without_case_articles_and_punctuation():
    assert normalized_answer(" A cat, the dog's. ") == "cat dogs"
    assert short_answers_found("on 28 june 2003!", ITEMS[0]["qa_pairs"]) == 0.5
    with pytest.raises(ValueError, match="short answers of its questions, got none"):
        short_answers_found("a", [])


@given(
    words=st.lists(st.sampled_from(["cat", "dog", "the", "on"])), gold=st.lists(st.sampled_from(["cat", "dog", "a"]))
)
def test_the_overlap_is_symmetric_and_1_for_equal_words_alone(words, gold):
    ours, theirs = " ".join(words), " ".join(gold)
    assert token_f1(ours, theirs) == token_f1(theirs, ours)
    same = sorted(normalized_answer(ours).split()) == sorted(normalized_answer(theirs).split())
    assert (token_f1(ours, theirs) == 1) == same


def test_columns_are_means_over_items_of_means_over_questions():
    pytest.importorskip("rouge_score")

    def reader(questions, contexts):
        assert list(zip(questions, contexts, strict=True)) == [
            ("When?", "It opened in Anaheim. Indeed."),
            ("Where?", "It opened in Anaheim. Indeed."),
            ("Who?", "the beatles!"),
        ]
        return ["June 2003", "in anaheim.", "Beatles"]

    columns = measure_answers(ANSWERS, ITEMS, reader=reader, split=SPLIT)
    assert columns["str_em"] == 75
    assert columns["qa_em"] == 50
    assert columns["qa_f1"] == pytest.approx(100 * ((0.8 + 2 / 3) / 2 + 1) / 2)
    overlap = 2 * 2 / (2 + 4)  # "the beatles" of "the beatles sang it"
    assert columns["rouge_l"] == pytest.approx(100 * (1 + overlap) / 2)
    assert list(measure_answers(ANSWERS, ITEMS, split=SPLIT)) == ["str_em", "rouge_l"]


def test_an_answer_for_each_item_is_asked_for():
    with pytest.raises(ValueError, match="got 1 and 2 items"):
        measure_answers(["a"], ITEMS)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"qa_pairs": [{"short_answers": "paz"}]}, "short_answers must be a list of texts, got 'paz'"),
        ({"qa_pairs": [{"short_answers": [""]}]}, "short_answers must be a list of texts"),
        ({"qa_pairs": ["paz"]}, "qa_pairs must list one or more with short_answers"),
        ({"annotations": [{}]}, "annotations must list one or more with a long_answer"),
        ({"qa_pairs": [{"short_answers": ["a"]}]}, "a reader needs the question"),
    ],
)
def test_an_item_that_cannot_be_measured_is_told(wrong, told):
    with pytest.raises(ValueError, match=f"item 1 cannot be measured, as in ASQA {told}"):
        check_references([ITEMS[0], ITEMS[1] | wrong], for_reader=True)


@pytest.mark.parametrize("answers", [["x"], ["x"] * 4])
def test_a_reader_gives_each_question_an_answer(answers):
    with pytest.raises(ValueError, match=f"must give each question an answer, got {len(answers)} for 3 questions"):
        measure_answers(ANSWERS, ITEMS, reader=lambda questions, contexts: answers, split=SPLIT)


def test_one_text_is_no_list_of_answers():
    with pytest.raises(ValueError, match="answers must be a list of texts, got the text 'ab'"):
        measure_answers("ab", ITEMS, split=SPLIT)
