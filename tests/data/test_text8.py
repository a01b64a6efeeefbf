import re
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets import load_corpus, pack_blocks, word_level_tokenizer
from hf_targets.data import text8


@pytest.fixture
def save(tmp_path, monkeypatch):
    (tmp_path / "text8").mkdir()
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    return (tmp_path / "text8" / "text8").write_text


def words_of(split):
    return "".join(split["text"]).split()


def test_text8_is_split_by_characters_between_words(save):
    words = [f"{number:04}" for number in range(1000)]  # 5 characters each, with a space
    save(" " + " ".join(words))
    corpus = load_corpus("text8")
    assert [len(words_of(corpus[split])) for split in ("train", "validation", "test")] == [900, 50, 50]
    assert [word for split in corpus for word in words_of(corpus[split])] == words
    assert load_corpus("text8", max_train_words=7)["train"]["text"][:] == [" ".join(words[:7]) + "\n"]


@given(words=st.lists(st.text("abc", min_size=1, max_size=9), min_size=60, max_size=90), row=st.integers(1, 30))
def test_every_word_of_text8_is_in_one_row_of_whole_words(tmp_path_factory, words, row):
    folder = tmp_path_factory.mktemp("data")
    (folder / "text8").mkdir()
    (folder / "text8" / "text8").write_text(" ".join(words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TARGETS_DATA", str(folder))
        patch.setattr(text8, "_ROW", row)
        rows = text8.text8_rows()
    assert [word for split in rows.values() for text in split for word in text.split()] == words
    assert all(text.endswith(" ") and text == text.lstrip() for split in rows.values() for text in split)
    assert all(rows.values())


def test_text8_has_no_word_for_the_end_of_a_line(save, monkeypatch):
    monkeypatch.setattr(text8, "_ROW", 20)
    save("one two three four five six seven eight nine " * 20)
    corpus = load_corpus("text8")
    tokenizer = word_level_tokenizer(corpus["train"]["text"])
    blocks = pack_blocks(corpus["validation"], tokenizer, 4)
    assert tokenizer.eos_token_id not in chain.from_iterable(blocks["input_ids"][:-1])
    assert sum(blocks["num_words"]) == len(words_of(corpus["validation"])) - 1


def test_without_its_file_text8_names_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=re.escape("'text8' is read from the folder text8 below the one that")):
        load_corpus("text8")
