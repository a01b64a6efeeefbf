"""All columns of table 7 for a few answers."""

import pytest

from hf_targets.evaluation.cited_scores import measure_cited_answers
from hf_targets.evaluation.entailment import LexicalEntailment
from hf_targets.evaluation.sentences import punkt_or_trained, punkt_sentences, train_splitter

pytest.importorskip("rouge_score")
DOCUMENTS = [{"title": "Cat", "text": "Cats sleep."}, {"title": "Dog", "text": "Dogs bark."}]
ITEM = {"qa_pairs": [{"question": "Who?", "short_answers": ["cats"]}], "annotations": [{"long_answer": "Cats sleep."}]}


def measured(answer, **settings):
    asked = []

    def entailment(pairs):
        asked.extend(pairs)
        return [claim.strip(" .") in premise for premise, claim in pairs]

    columns = measure_cited_answers([answer], [ITEM], [DOCUMENTS], entailment, split=train_splitter([]), **settings)
    assert len(asked) == len(set(asked))
    return columns


def test_both_readings_of_a_citation_after_the_stop_are_columns_and_no_pair_is_judged_twice():
    columns = measured("Dogs bark. [2] Cats sleep [1].")
    assert list(columns)[:4] == [
        "citation_recall", "citation_precision", "citation_recall_own", "citation_precision_own"
    ]  # fmt: skip
    assert (columns["citation_recall"], columns["citation_recall_own"]) == (50, 100)
    assert columns["str_em"] == 100
    assert not {"qa_em", "qa_f1"} & columns.keys()


def test_the_columns_say_who_judged_and_a_reader_adds_its_own():
    columns = measured("Cats sleep[1].", judged_by="lexical", reader=lambda questions, contexts: ["cats"])
    assert columns["lexical_recall"] == columns["lexical_precision_own"] == columns["qa_em"] == 100
    assert not any(name.startswith("citation") for name in columns)


def test_answers_without_a_sentence_have_no_figures_of_citations():
    assert set(measured("")) == {"str_em", "rouge_l"}


def test_sentences_are_cut_by_a_trained_model_only_where_the_published_one_is_missing(monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk, "sent_tokenize", str.split)
    assert punkt_or_trained([])[0] is punkt_sentences

    def missing(text):
        raise LookupError

    monkeypatch.setattr(nltk, "sent_tokenize", missing)
    split, name = punkt_or_trained(["One. Two."])
    assert split("Cats sleep. Dogs do.") == ["Cats sleep.", "Dogs do."]
    assert "trained on the documents" in name


def test_each_answer_needs_its_documents_even_without_a_sentence():
    with pytest.raises(ValueError, match="each answer needs its documents, got 1 answers and 0 lists"):
        measure_cited_answers([""], [{}], [], LexicalEntailment())
