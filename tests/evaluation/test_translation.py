import pytest

from hf_targets.data.pairs import data_set_of
from hf_targets.evaluation.translation import translate, translation_scores
from tests.multitoken.test_seq2seq_trainer import TOKENIZER, make, rows

TEXTS = ["The dog runs across the wide street.", "A cat sees (it seems) the dog!", "No."]
WORSE = ["The dog walks on the wide street.", "A cat sees the dog!", ""]


def test_a_reference_has_full_marks_against_itself_with_full_signatures():
    scores = translation_scores(TEXTS, TEXTS)
    assert (scores.bleu, scores.chrf) == (pytest.approx(100), pytest.approx(100))
    assert scores.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert (scores.bleu_tokenized, scores.bleu_tokenized_signature) == (None, None)


def test_scores_are_those_of_sacrebleu_itself():
    import sacrebleu

    scores = translation_scores(WORSE, TEXTS)
    assert scores.bleu == sacrebleu.corpus_bleu(WORSE, [TEXTS]).score < 90
    assert scores.chrf == sacrebleu.corpus_chrf(WORSE, [TEXTS]).score < 90


def test_bleu_of_tokenized_text_has_a_name_of_its_own():
    hypotheses, references = ["a dog , a cat and x-y ."], ["a dog , a cat and x - y ."]
    tokenized = translation_scores(hypotheses, references, tokenized=True)
    assert tokenized.columns() == {"bleu_tokenized": tokenized.bleu_tokenized, "chrf": tokenized.chrf}
    assert (tokenized.bleu, tokenized.bleu_signature) == (None, None)
    assert "|tok:none|" in tokenized.bleu_tokenized_signature
    assert translation_scores(["x - y z ( w"], ["x - y z (w"]).bleu > 99 > tokenized.bleu_tokenized


def test_tokenized_text_has_the_scores_of_its_plain_text_too():
    pytest.importorskip("sacremoses")
    cut = [
        "The dog runs across the wide street .",
        "A cat sees ( it seems ) the dog !",
        "it &apos;s five o &apos;clock",
    ]
    plain = [*TEXTS[:2], "it's five o'clock"]
    worse = ["The dog walks on the wide street .", "A cat sees ( it ) !", "it &apos;s"]
    scores = translation_scores(worse, [[text, text] for text in cut], tokenized=True, target_lang="en")
    expected = translation_scores(["The dog walks on the wide street.", "A cat sees (it)!", "it's"], plain)
    assert scores.chrf == pytest.approx(expected.chrf)
    assert scores.bleu == pytest.approx(expected.bleu) and "|tok:13a|" in scores.bleu_signature
    assert scores.bleu_tokenized != scores.bleu and scores.columns().keys() == {"bleu", "bleu_tokenized", "chrf"}


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


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "says"),
    [([], [], {}, "0 references"), (["a"], ["a", "b"], {}, "2 references"), (["a", "b"], [["a"], []], {}, "number 1")],
)
def test_texts_that_cannot_be_compared_are_refused(hypotheses, references, options, says):
    with pytest.raises(ValueError, match=says):
        translation_scores(hypotheses, references, **options)


def test_texts_of_a_split_are_compared_with_all_references():
    texts = ["the cat sat on the mat today", "it began in the early morning"]
    first = ["a cat sat down on the mat today", "it began in the morning"]
    one = data_set_of([("a", first[0]), ("b", first[1])])
    several = data_set_of([("a", [first[0], texts[0]]), ("b", first[1])])
    expected = translation_scores(texts, [[first[0], texts[0]], [first[1]]]).columns()
    assert translation_scores(texts, several).columns() == expected != translation_scores(texts, one).columns()
    assert translation_scores(texts, one) == translation_scores(texts, first)


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 1, "ensemble_weight": 0.4}])
def test_they_are_those_of_each_pair_alone(settings):
    model, data = make().double().eval(), rows(8)
    together = translate(model, data, TOKENIZER, batch_tokens=40, max_length=10, **settings)  # one begins the text
    alone = [translate(model, data.select([row]), TOKENIZER, max_new_tokens=9, **settings)[0] for row in range(8)]
    assert together == alone
    assert len(set(together)) > 1


def test_the_model_keeps_its_mode():
    model = make().train()
    translate(model, rows(1), TOKENIZER, num_beams=1, max_new_tokens=2)
    assert model.training
