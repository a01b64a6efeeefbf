import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hf_targets.evaluation.repetition import Repetition, measure_repetition, repeated_ngrams

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=4)


def brute_force(text, order):
    windows = [tuple(text[at : at + order]) for at in range(len(text) - order + 1)]
    repeats = sum(window in windows[:at] for at, window in enumerate(windows))
    return repeats, len(windows)


@given(texts=TEXTS, order=st.integers(1, 4))
def test_repeated_ngrams_are_those_that_came_before_in_the_same_text(texts, order):
    assume(any(len(text) >= order for text in texts))
    counts = [brute_force(text, order) for text in texts if len(text) >= order]
    mean = 100 * sum(repeats / total for repeats, total in counts) / len(counts)
    assert repeated_ngrams(texts, order) == pytest.approx(mean)


def test_a_loop_and_a_text_without_repetition_by_hand():
    assert measure_repetition([[1, 2, 1, 2, 1, 2]]) == Repetition(60.0, 50.0, pytest.approx(100 / 3))
    assert measure_repetition([[1, 2, 1, 2, 1, 2]]).diversity == pytest.approx(0.4 * 0.5 * 2 / 3)
    assert measure_repetition([["every", "word", "is", "another", "one"]]) == Repetition(0.0, 0.0, 0.0)
    assert measure_repetition([[7] * 5]).diversity == pytest.approx(1 / 4 * 1 / 3 * 1 / 2)


@pytest.mark.parametrize(
    ("reps", "diversity"),
    [((41.96, 36.82, 33.74), 24.30), ((34.77, 30.67, 28.35), 32.41), ((27.77, 20.80, 17.08), 47.44)],
)
def test_the_diversity_of_the_paper_s_table_1_follows_from_its_repetitions(reps, diversity):
    assert 100 * Repetition(*reps).diversity == pytest.approx(diversity, abs=0.01)


def test_tensors_and_arrays_are_counted_as_lists_are():
    texts = [[1, 1, 1, 1, 2], [3, 4, 3, 4, 3]]
    for rows in (torch.tensor(texts), list(torch.tensor(texts)), np.array(texts)):
        assert measure_repetition(rows) == measure_repetition(texts)


@pytest.mark.parametrize(
    ("texts", "order", "told"),
    [([[1]], 2, "2-gram"), ([], 2, "no text"), (["a text"], 2, "tokenize"), ([[1]], 0, "order")],
)
def test_texts_that_say_nothing_are_refused(texts, order, told):
    with pytest.raises(ValueError, match=told):
        repeated_ngrams(texts, order)
