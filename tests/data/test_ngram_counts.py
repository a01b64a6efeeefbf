import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.evaluation.repetition import count_ngrams

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6)


@given(rows=ROWS, order=st.integers(1, 4))
def test_only_the_distinct_ngrams_within_rows_count(rows, order):
    windows = {tuple(row[start : start + order]) for row in rows for start in range(len(row) - order + 1)}
    assert count_ngrams(iter(rows), order) == count_ngrams(rows * 2, order) == len(windows)


@pytest.mark.parametrize(("rows", "order", "says"), [([[1]], 0, "at least 1"), (["a b"], 2, "'a b'"), ("a", 1, "'a'")])
def test_texts_and_ngrams_of_no_token_are_refused(rows, order, says):
    with pytest.raises(ValueError, match=says):
        count_ngrams(rows, order)
