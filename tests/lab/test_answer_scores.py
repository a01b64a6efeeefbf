"""Long answers are measured as the published program measures them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.evaluation.sentences import train_splitter
from hf_targets.phrases.cited_answers import CitedAnswer
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan
from lab.answer_scores import (
    measure_answers,
    measure_citations,
    measure_provenance,
    normalized_answer,
    short_answers_found,
    token_f1,
)

pytest.importorskip("rouge_score")
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
DOCUMENTS = [{"title": "Cat", "text": "Cats sleep."}, {"title": "Dog", "text": "Dogs bark."}]


def test_a_short_answer_is_found_without_case_articles_and_punctuation():
    assert normalized_answer(" A cat, the dog's. ") == "cat dogs"
    assert short_answers_found("on 28 june 2003!", ITEMS[0]["qa_pairs"]) == 0.5


@given(
    words=st.lists(st.sampled_from(["cat", "dog", "the", "on"])), gold=st.lists(st.sampled_from(["cat", "dog", "a"]))
)
def test_the_overlap_is_symmetric_and_1_for_equal_words_alone(words, gold):
    ours, theirs = " ".join(words), " ".join(gold)
    assert token_f1(ours, theirs) == token_f1(theirs, ours)
    same = sorted(normalized_answer(ours).split()) == sorted(normalized_answer(theirs).split())
    assert (token_f1(ours, theirs) == 1) == same


def test_columns_are_means_over_items_of_means_over_questions():
    def reader(questions, contexts):
        assert list(zip(questions, contexts, strict=True)) == [
            ("When?", "It opened in Anaheim. Indeed."),
            ("Where?", "It opened in Anaheim. Indeed."),
            ("Who?", "the beatles!"),
        ]
        return ["June 2003", "in anaheim.", "Beatles"]

    columns = measure_answers(ANSWERS, ITEMS, SPLIT, reader)
    assert columns["str_em"] == 75
    assert columns["qa_em"] == 50
    assert columns["qa_f1"] == pytest.approx(100 * ((0.8 + 2 / 3) / 2 + 1) / 2)
    overlap = 2 * 2 / (2 + 4)  # "the beatles" of "the beatles sang it"
    assert columns["rouge_l"] == pytest.approx(100 * (1 + overlap) / 2)
    assert list(measure_answers(ANSWERS, ITEMS, SPLIT)) == ["str_em", "rouge_l"]


def test_both_readings_of_a_citation_after_the_stop_are_columns_and_no_pair_is_judged_twice():
    asked = []

    def entails(premise, claim):
        asked.append((premise, claim))
        return claim.strip(" .") in premise

    columns = measure_citations(["Dogs bark. [2] Cats sleep [1]."], [DOCUMENTS], entails, SPLIT, "lexical")
    assert list(columns) == ["lexical_recall", "lexical_precision", "lexical_recall_own", "lexical_precision_own"]
    assert (columns["lexical_recall"], columns["lexical_recall_own"]) == (50, 100)
    assert len(asked) == len(set(asked))
    assert measure_citations([""], [DOCUMENTS], entails, SPLIT) == {}


def answer(num_characters, num_from_documents, *documents):
    seconds = {"mining": 1.0, "encoding": 2.0, "generation": 3.0}
    spans = tuple(PhraseSpan(0, 1, 9, "a", (PhraseSource(name, 0, 1),)) for name in documents)
    return CitedAnswer("a cat[1]", spans, num_characters, num_from_documents, 5, 2, 6, seconds)


def test_columns_of_provenance_are_shares_of_all_answers_and_shares_of_nothing_are_left_out():
    expected = {"from_documents": 50, "documents_used": 0.5, "steps": 2, "seconds": 6, "phrase_seconds": 3}
    assert measure_provenance([answer(4, 3, "1", "1"), answer(4, 1)]) == expected
    assert "from_documents" not in measure_provenance([answer(0, 0)])
