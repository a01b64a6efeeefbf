import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import sentence_bleu

from hf_targets.gaussian_diffusion.selection import select_by_bleu

WORDS = st.lists(st.sampled_from(["a", "the", "cat", "mat", "sat"]), min_size=1, max_size=7).map(" ".join)


@given(st.lists(WORDS, min_size=2, max_size=6))
def test_it_is_the_reference_that_all_others_are_most_like(candidates):
    def score(number):
        others = [text for other, text in enumerate(candidates) if other != number]
        return sum(sentence_bleu(text, [candidates[number]]).score for text in others)

    scores = [score(number) for number in range(len(candidates))]
    assert scores[select_by_bleu(candidates)] == pytest.approx(max(scores), rel=1e-9)


def test_the_candidate_is_the_reference_and_not_the_hypothesis():
    candidates = ["the sat on sat", "mat cat the mat the mat", "on the sat mat a sat"]
    as_hypothesis = [
        sum(sentence_bleu(one, [other]).score for other in candidates if other != one) for one in candidates
    ]
    assert as_hypothesis.index(max(as_hypothesis)) == 0
    assert select_by_bleu(candidates) == 2


def test_an_empty_text_is_chosen_only_if_there_is_no_other():
    assert select_by_bleu(["", "", "a cat"]) == 2
    assert select_by_bleu(["", " "]) == 0
    with pytest.raises(ValueError, match="got none"):
        select_by_bleu([])


def test_a_text_that_was_written_twice_beats_one_that_is_alone():
    assert select_by_bleu(["no dog is here", "the cat sat on a mat", "the cat sat on a mat"]) == 1
