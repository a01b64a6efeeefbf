import sys
from types import SimpleNamespace

import pytest

from hf_targets.data.pairs import data_set_of
from hf_targets.evaluation.translating import score_texts
from hf_targets.evaluation.translation import translation_scores

TEXTS = ["The dog runs across the wide street.", "A cat sees (it seems) the dog!", "No."]
WORSE = ["The dog walks on the wide street.", "A cat sees the dog!", ""]


def test_a_reference_has_full_marks_against_itself_with_full_signatures():
    scores = translation_scores(TEXTS, TEXTS)
    assert (scores.bleu, scores.chrf) == (pytest.approx(100), pytest.approx(100))
    assert scores.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert (scores.bleu_tokenized, scores.bleu_tokenized_signature, scores.comet) == (None, None, None)


def test_scores_are_those_of_sacrebleu_itself():
    import sacrebleu

    scores = translation_scores(WORSE, TEXTS)
    assert scores.bleu == sacrebleu.corpus_bleu(WORSE, [TEXTS]).score < 90
    assert scores.chrf == sacrebleu.corpus_chrf(WORSE, [TEXTS]).score < 90


def test_case_counts_unless_it_is_ignored():
    upper = [text.upper() for text in TEXTS]
    assert translation_scores(upper, TEXTS).bleu < 50
    scores = translation_scores(upper, TEXTS, lowercase=True)
    assert (scores.bleu, scores.chrf) == (pytest.approx(100), pytest.approx(100))
    assert "case:lc" in scores.bleu_signature and "case:lc" in scores.chrf_signature


def test_bleu_of_tokenized_text_has_a_name_of_its_own():
    hypotheses, references = ["a dog , a cat and x-y ."], ["a dog , a cat and x - y ."]
    tokenized = translation_scores(hypotheses, references, tokenized=True)
    assert (tokenized.bleu, tokenized.bleu_signature) == (None, None)
    assert "|tok:none|" in tokenized.bleu_tokenized_signature
    assert translation_scores(["x - y z ( w"], ["x - y z (w"]).bleu > 99 > tokenized.bleu_tokenized


def test_several_references_are_better_than_one_and_their_numbers_may_differ():
    several = [[text] for text in TEXTS]
    assert translation_scores(WORSE, several) == translation_scores(WORSE, TEXTS)
    several[0].append(WORSE[0])
    better = translation_scores(WORSE, several)
    assert better.bleu > translation_scores(WORSE, TEXTS).bleu
    assert better.chrf > translation_scores(WORSE, TEXTS).chrf
    assert better.bleu_signature.startswith("nrefs:var|")
    both = [[WORSE[number], text] for number, text in enumerate(TEXTS)]
    assert translation_scores(TEXTS, both).bleu_signature.startswith("nrefs:2|")


def test_words_of_a_language_without_spaces_are_cut_as_it_says():
    scores = translation_scores(["我喜欢吃苹果和梨"], ["我喜欢吃苹果和桃"], target_lang="zh")
    assert "|tok:zh|" in scores.bleu_signature and scores.bleu > 50
    assert translation_scores(["我喜欢吃苹果和梨"], ["我喜欢吃苹果和桃"]).bleu < 50


def test_comet_is_refused_in_words_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr("hf_targets.evaluation.translation.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"COMET's package is not installed.*transformers below 5.*comet-score -s"):
        translation_scores(TEXTS, TEXTS, comet="Unbabel/wmt22-comet-da", sources=TEXTS)


def test_comet_reads_source_hypothesis_and_reference(monkeypatch):
    asked = []

    def predict(rows, **_):
        asked.extend(rows)
        return SimpleNamespace(system_score=0.5)

    package = SimpleNamespace(
        __spec__=SimpleNamespace(),
        download_model=str.upper,
        load_from_checkpoint=lambda path: SimpleNamespace(predict=predict),
    )
    monkeypatch.setitem(sys.modules, "comet", package)
    scores = translation_scores(["h"], [["r"]], comet="name", sources=["s"])
    assert (scores.comet, scores.comet_model) == (0.5, "name")
    assert asked == [{"src": "s", "mt": "h", "ref": "r"}]
    with pytest.raises(ValueError, match="one reference, got several"):
        translation_scores(["h"], [["r", "q"]], comet="name", sources=["s"])
    with pytest.raises(ValueError, match="needs its source, got 1"):
        translation_scores(["h"], ["r"], comet="name", sources=[])


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "says"),
    [
        ("text", ["text"], {}, "hypotheses must be several texts, got the text 'text'; put it in a list"),
        (["text"], "text", {}, "references must be several texts"),
        ([], [], {}, "got none"),
        (["a"], ["a", "b"], {}, "got 1 hypotheses and 2 references"),
        (["a", "b"], [["a"], []], {}, r"one reference or more, got \[\] for number 1"),
        (["a"], [None], {}, "got None for number 0|references"),
        ([[1, 2]], ["a"], {}, r"got \[1, 2\] at number 0; decode"),
        (["a"], ["a"], {"comet": "name"}, "together or not at all"),
        (["a"], ["a"], {"tokenized": True, "target_lang": "zh"}, "got 'zh'"),
    ],
)
def test_texts_that_cannot_be_compared_are_refused(hypotheses, references, options, says):
    with pytest.raises(ValueError, match=says):
        translation_scores(hypotheses, references, **options)


def test_columns_are_of_the_bleu_that_was_computed():
    for tokenized, name in ((False, "bleu"), (True, "bleu_tokenized")):
        scores = translation_scores(["a dog sleeps on grass"], ["a dog sleeps on grass"], tokenized=tokenized)
        assert scores.columns() == {name: pytest.approx(100), "chrf": pytest.approx(100)}
        assert f"tok:{'none' if tokenized else '13a'}" in scores.signature


def test_texts_of_a_split_are_compared_with_all_references_and_the_signature_is_printed(capsys):
    texts = ["the cat sat on the mat today", "it began in the early morning"]
    one = data_set_of([("a", "a cat sat down on the mat today"), ("b", "it began in the morning")])
    several = data_set_of([("a", ["a cat sat down on the mat today", texts[0]]), ("b", "it began in the morning")])
    expected = translation_scores(texts, [["a cat sat down on the mat today", texts[0]], ["it began in the morning"]])
    assert score_texts(texts, several) == expected.columns() != score_texts(texts, one)
    assert score_texts(texts, one) == translation_scores(texts, one["target"][:]).columns()
    assert score_texts(texts, several, tokenized=True).keys() == {"bleu_tokenized", "chrf"}
    assert [line.split("|")[0] for line in capsys.readouterr().out.splitlines()][:2] == [
        "BLEU is nrefs:var",
        "BLEU is nrefs:1",
    ]
