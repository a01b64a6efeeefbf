import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_targets.phrases.encoder import plan_windows

TOKENS = st.sampled_from([0, 1, 255, 256, 2**16, 2**24 + 1, 2**31 - 1])  # whose bytes sort otherwise than they do
PHRASES = st.lists(st.lists(TOKENS, min_size=1, max_size=6).map(tuple), unique=True, max_size=25)
law = settings(derandomize=True, deadline=None, max_examples=150)


def plan(phrases, **settings):
    ids = np.array([id_ for phrase in phrases for id_ in phrase], np.int64)
    offsets = np.cumsum([0, *map(len, phrases)])
    return list(plan_windows(ids, offsets, **settings))


@law
@given(phrases=PHRASES, max_tokens=st.sampled_from([1, 8, 2**14]))
@example(phrases=[(1, 2), (1, 2, 3), (1, 2, 3, 4), (2, 3)], max_tokens=2**14)
@example(phrases=[(256, 1), (1, 256), (256,), (1,)], max_tokens=8)
def test_every_phrase_is_planned_once_as_the_beginning_of_its_window(phrases, max_tokens):
    seen = []
    for batch in plan(phrases, max_tokens=max_tokens):
        assert len(batch.phrase_windows) == len(batch.phrases)
        for (window, length), number in zip(batch.phrase_windows.tolist(), batch.phrases.tolist(), strict=True):
            assert tuple(batch.windows[window, :length].tolist()) == phrases[number]
            seen.append(number)
    assert sorted(seen) == list(range(len(phrases)))


@law
@given(phrases=PHRASES)
def test_windows_are_the_phrases_that_begin_no_other(phrases):
    windows = [tuple(window) for batch in plan(phrases) for window in batch.windows.tolist()]
    longest = [one for one in phrases if not any(other[: len(one)] == one for other in phrases if other != one)]
    assert sorted(windows) == sorted(longest)


@law
@given(phrases=PHRASES, max_tokens=st.integers(1, 20))
def test_batches_are_of_one_length_and_of_no_more_tokens_than_asked_for(phrases, max_tokens):
    for batch in plan(phrases, max_tokens=max_tokens):
        assert batch.windows.dtype == np.int64
        assert batch.windows.size <= max_tokens or len(batch.windows) == 1
        assert set(batch.phrase_windows[:, 0].tolist()) == set(range(len(batch.windows)))  # none is for nothing


def test_the_same_phrase_twice_is_planned_twice_in_one_window():
    (batch,) = plan([(5, 6), (5, 6)])
    assert batch.windows.tolist() == [[5, 6]]
    assert batch.phrase_windows.tolist() == [[0, 2], [0, 2]]
    assert sorted(batch.phrases.tolist()) == [0, 1]
