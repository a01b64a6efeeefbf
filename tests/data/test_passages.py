"""Documents become passages."""

from hypothesis import given
from hypothesis import strategies as st

from hf_targets.data.passages import clean_text, passages_of

TEXTS = st.text(alphabet="ae. \n!\u3002\x00\u00a0e\u0301", max_size=200)


@given(TEXTS)
def test_cleaning_a_clean_text_changes_nothing_and_no_word_is_lost(text):
    clean = clean_text(text)
    assert clean_text(clean) == clean
    letters = (letter for letter in text if letter not in "\x00\u0301" and not letter.isspace())
    assert "".join(clean.split()).replace("\u0301", "").replace("\xe9", "e").replace("\xe1", "a") == "".join(letters)


@given(TEXTS, st.integers(1, 5))
def test_passages_have_all_words_in_order_and_none_is_twice_as_long_as_told(text, num_words):
    clean = clean_text(text)
    passages = passages_of(clean, num_words)
    assert [word for passage in passages for word in passage.split()] == clean.split()
    assert all(0 < len(passage.split()) < 2 * num_words for passage in passages)
    assert all(len(passage.split()) >= num_words for passage in passages[:-1])
