import numpy as np
import pytest

from hf_targets.evaluation import translation_intervals
from hf_targets.evaluation.translation import translation_scores
from hf_targets.evaluation.translation_intervals import bleu_interval

REFERENCES = [f"the {animal} number {n} runs across the street ." for n in range(20) for animal in ("dog", "cat")]
GOOD = [text.replace("across", "over") if n % 4 == 0 else text for n, text in enumerate(REFERENCES)]
BAD = [text.replace("runs", "walks") if n % 2 else text for n, text in enumerate(GOOD)]


def test_the_interval_lies_around_the_score_and_widens_with_confidence():
    score = translation_scores(BAD, REFERENCES).bleu
    low, high = bleu_interval(BAD, REFERENCES)
    assert 0 < low < score < high < 100
    wider = bleu_interval(BAD, REFERENCES, confidence=0.99)
    assert wider[0] <= low and high <= wider[1]
    assert (low, high) == bleu_interval(BAD, REFERENCES)


@pytest.mark.parametrize("options", [{}, {"tokenized": True}, {"lowercase": True}])
@pytest.mark.parametrize("several", [False, True])
def test_every_resample_has_the_corpus_score_of_its_sentences(monkeypatch, options, several):
    references = [[text, text[:9]] for text in REFERENCES] if several else REFERENCES
    chosen = np.random.default_rng(0).integers(len(BAD), size=(2, len(BAD)))
    chosen[0] = np.arange(len(BAD))
    found = []
    monkeypatch.setattr(
        translation_intervals, "bootstrap_interval", lambda by, *_, **__: found.append(by(chosen)) or (0, 0)
    )
    bleu_interval(BAD, references, **options)
    for value, numbers in zip(found[0], chosen, strict=True):
        scores = translation_scores([BAD[n] for n in numbers], [references[n] for n in numbers], **options)
        assert value == pytest.approx(scores.bleu_tokenized if options.get("tokenized") else scores.bleu)


def test_a_system_differs_from_a_worse_one_and_not_from_itself():
    low, high = bleu_interval(GOOD, REFERENCES, baseline=BAD)
    difference = translation_scores(GOOD, REFERENCES).bleu - translation_scores(BAD, REFERENCES).bleu
    assert 0 < low < difference < high
    assert bleu_interval(BAD, REFERENCES, baseline=GOOD) == pytest.approx((-high, -low))
    assert bleu_interval(BAD, REFERENCES, baseline=BAD, confidence=0.9) == (0, 0)


def test_texts_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="got 1 hypotheses and 40 references"):
        bleu_interval(GOOD, REFERENCES, baseline=["a"])
    with pytest.raises(ValueError, match="at least 2 items"):
        bleu_interval(["a"], ["a"])
