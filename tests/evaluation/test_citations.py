"""Citations are counted as the published program counts them, one answer at a time or many at once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.evaluation.citations import citation_scores, mean_citation_scores, without_citations
from hf_targets.evaluation.sentences import punkt_or_trained, punkt_sentences, train_splitter

SPLIT = train_splitter([])
DOCUMENTS = [
    {"title": "One", "text": "apples and pears"},
    {"title": "Two", "text": "apples and plums"},
    {"title": "Three", "text": "quinces"},
    {"title": "Four", "text": "plums and figs"},
]


def has_every_fruit(premise: str, hypothesis: str) -> bool:
    """Entail where the premise names every fruit of the hypothesis."""
    return all(fruit in premise for fruit in re.findall("apples|pears|plums|quinces|figs|grapes", hypothesis))


def scores(answer, documents=DOCUMENTS, **options):
    return citation_scores(answer, documents, has_every_fruit, **{"split": SPLIT, **options})


CASES = {
    "without a citation nothing is entailed": ("They sell apples.", (0, 0)),
    "a right one": ("They sell apples [1].", (100, 100)),
    "a wrong one": ("They sell figs [1].", (0, 0)),
    "one of two sentences": ("They sell apples [1]. They sell figs [1].", (50, 50)),
    "two that are needed together": ("They sell pears and figs [1][4].", (100, 100)),
    "of two that both suffice, both are right": ("They sell apples [1][2].", (100, 100)),
    "one that adds nothing": ("They sell apples [1][3].", (100, 50)),
    "the same twice counts twice": ("They sell apples [1][1].", (100, 100)),
    "the same twice, and useless": ("They sell apples [1][3][3].", (100, 100 / 3)),
    "out of range voids the sentence and none of its citations count": (
        "Apples [1][5]. They sell apples [1].",
        (50, 100),
    ),
    "a year in brackets is out of range": ("In [2019] they sold apples [1].", (0, 0)),
    "zero is the last document": ("They sell figs [0].", (100, 100)),
    "a closing bracket is not needed": ("They sell apples [1 here.", (100, 100)),
    "a fourth citation is cut": ("They sell apples, pears and figs [1][2][3][4].", (0, 0)),
    "the range is tested before the cut": ("They sell apples [1][1][1][9].", (0, 0)),
    "after the full stop it belongs to the next sentence, or is one": (
        "They sell apples. [1] They sell figs. [4]",
        (100 / 3, 50),
    ),
    "only the first line counts": ("They sell apples [1].\nThey sell figs [1].", (100, 100)),
    "spaces and lines before the text are dropped": ("\n  They sell apples [1].", (100, 100)),
    "the end of a chat is no text": ("They sell apples [1].<|im_end|>", (100, 100)),
    "an empty answer": ("", (0, 0)),
}


@pytest.mark.parametrize(("answer", "expected"), CASES.values(), ids=CASES)
def test_each_case_is_counted_as_published(answer, expected):
    assert scores(answer) == pytest.approx(expected)


def test_other_limits_and_readings():
    four = "They sell apples, pears and figs [1][2][3][4]."
    assert scores(four, at_most=None) == pytest.approx((100, 50))  # without 2 or 3 the others entail it
    assert scores(four, at_most=1) == scores("They sell apples [0] and figs [1].", documents=[]) == (0, 0)
    stop = "They sell apples. [1] They sell figs. [4][3]"
    assert scores(stop, after_stop="own") == pytest.approx((100, 200 / 3))
    assert scores("They sell apples. [1]. They sell figs. [4].", after_stop="own") == (100, 100)
    assert scores("[1] They sell apples.", after_stop="own") == (100, 100)  # there is no sentence before it


def test_the_premise_has_titles_and_the_claim_has_no_citation():
    asked = []
    citation_scores("They sell apples [1] [3]. More.", DOCUMENTS, lambda *pair: bool(asked.append(pair)), split=SPLIT)
    assert asked == [("Title: One\napples and pears\nTitle: Three\nquinces", "They sell apples.")]
    assert without_citations("a [1] b[2] |c [3") == "a bc"


@given(st.lists(st.sampled_from([case for case, _ in CASES.values()]), min_size=1))
def test_many_answers_are_scored_as_each_alone_and_no_pair_is_judged_twice(answers):
    asked = []

    def entails(*pair):
        asked.append(pair)
        return has_every_fruit(*pair)

    texts = [answer for answer in answers if answer]
    if not texts:
        with pytest.raises(ValueError, match="answers with a sentence, and there is none"):
            mean_citation_scores(answers, [DOCUMENTS] * len(answers), entails, split=SPLIT)
        return
    means = mean_citation_scores(answers, [DOCUMENTS] * len(answers), entails, split=SPLIT)
    alone = [scores(text) for text in texts]
    assert means == pytest.approx(tuple(sum(column) / len(texts) for column in zip(*alone, strict=True)))
    assert len(set(asked)) == len(asked)


def test_wrong_arguments_are_named():
    for options in ({"at_most": 0}, {"after_stop": "before"}, {"documents": [{"title": "One"}]}):
        with pytest.raises(ValueError, match=r"at_most|before|document 1"):
            scores("They sell apples [1].", **options)
    with pytest.raises(ValueError, match="0 lists"):
        mean_citation_scores(["Apples."], [], has_every_fruit)


def test_a_splitter_learns_abbreviations():
    text = "He met Dr. Who. It rained."
    learned = train_splitter(
        ["Dr. Who came. Dr. No left. Dr. Who and Dr. No. The Dr. is in. A Dr. came. Dr. Jekyll."] * 9
    )
    assert learned(text) == ["He met Dr. Who.", "It rained."]


def test_sentences_are_cut_by_a_trained_model_only_where_the_published_one_is_missing(monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk, "sent_tokenize", str.split)
    assert punkt_or_trained([]) is punkt_sentences

    def missing(text):
        raise LookupError

    monkeypatch.setattr(nltk, "sent_tokenize", missing)
    assert punkt_or_trained(["One. Two."])("Cats sleep. Dogs do.") == ["Cats sleep.", "Dogs do."]
    with pytest.raises(LookupError, match="punkt_tab"):
        citation_scores("Apples [1].", DOCUMENTS, has_every_fruit)
