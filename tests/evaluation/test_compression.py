import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.evaluation.compression import measure_compression, normalized_sequence_length

PAIRS = st.lists(st.tuples(st.text(min_size=1, max_size=9), st.integers(1, 9)), min_size=1, max_size=5)
varied = settings(derandomize=True, deadline=None)


@varied
@given(pairs=PAIRS)
def test_bytes_a_step_times_steps_a_text_are_bytes_a_text_however_it_is_cut(pairs):
    texts, steps = zip(*pairs, strict=True)
    found = measure_compression(texts, steps)
    size = sum(len(text.encode()) for text in texts) / len(texts)
    assert found.bytes_per_step * found.steps_per_text == pytest.approx(size)
    assert found.num_texts == len(texts)


@varied
@given(pairs=PAIRS)
def test_one_step_a_byte_is_a_byte_a_step_on_both_averages(pairs):
    texts = [text for text, _ in pairs]
    found = measure_compression(texts, [len(text.encode()) for text in texts])
    assert found.bytes_per_step == found.mean_bytes_per_step == 1


@varied
@given(steps=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_the_ratio_of_lengths_is_that_of_sums_turns_round_and_is_one_for_oneself(steps):
    ours, theirs = zip(*steps, strict=True)
    assert normalized_sequence_length(ours, theirs) == sum(ours) / sum(theirs)
    assert normalized_sequence_length(ours, theirs) * normalized_sequence_length(theirs, ours) == pytest.approx(1)
    assert normalized_sequence_length(ours, ours) == 1
    texts = ["x"] * len(steps)
    both = measure_compression(texts, ours, theirs)
    plain = measure_compression(texts, theirs)
    assert both.relative_length == pytest.approx(both.steps_per_text / plain.steps_per_text)
    assert plain.relative_length is None


def test_bytes_are_those_of_utf_8_and_the_two_averages_differ_by_hand():
    found = measure_compression(["naïve", "日本"], [1, 3])
    assert found.steps_per_text == 2
    assert found.bytes_per_step == (6 + 6) / 4
    assert found.mean_bytes_per_step == (6 / 1 + 6 / 3) / 2


def test_a_text_of_nothing_shortens_the_mean_length_and_no_more():
    found = measure_compression(["abcd", ""], [2, 0])
    assert (found.steps_per_text, found.bytes_per_step, found.mean_bytes_per_step) == (1, 2, 2)


@pytest.mark.parametrize(
    ("texts", "steps", "reference", "says"),
    [
        (["a", "b"], [1], None, "1 numbers for 2 texts"),
        (["a"], [1], [1, 2], "1 numbers for 2 texts"),
        (["a"], [-1], None, "got -1"),
        (["a"], [1], [-1], "got -1"),
        (["a", "bc"], [1, 0], None, "text 1 has 2 bytes and 0 steps"),
        ([], [], None, "got 0 texts without"),
        ([""], [0], None, "got 1 texts without"),
        (["a"], [1], [0], "got 1 and 0"),
        ("a", [1], None, "got one string"),
    ],
)
def test_counts_that_do_not_fit_are_refused(texts, steps, reference, says):
    with pytest.raises(ValueError, match=says):
        measure_compression(texts, steps, reference)
