"""Words are counted one way: perplexities per word compare across tokenizers, and with published ones."""

import pytest
from datasets import Dataset
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from hf_targets.data.blocks import pack_blocks
from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
from hf_targets.data.words import word_runs
from hf_targets.masked_diffusion.rows import sentence_rows, wrapped_blocks

SENTENCES = ["the cat sat on the mat\n", "a dog saw the cat\n", "the mat is flat and the cat is fat\n"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "d", "##o", "##g", "mat", "a", "is"]
TOKENIZERS = {
    "words": word_level_tokenizer(SENTENCES),
    "bytes": train_bpe_tokenizer(SENTENCES, vocab_size=280),
    "wordpieces": BertTokenizer(vocab={piece: id_ for id_, piece in enumerate(PIECES)}),
}
WRITTEN = st.lists(st.sampled_from(["the", "cat", "dog", "flat", "é", "."]), min_size=1, max_size=9).map(" ".join)
ROWS = st.lists(WRITTEN.map(lambda text: f"{text}\n"), min_size=2, max_size=5)
line_ends = pytest.mark.parametrize("line_ends", [True, False])


def data(rows):
    return Dataset.from_dict({"text": rows})


def words_of(rows, line_ends):
    return len("".join(rows).split()) + line_ends * "".join(rows).count("\n")


@line_ends
@settings(max_examples=10)
@given(rows=ROWS, blank=st.booleans(), block_size=st.integers(2, 9))
def test_blocks_have_the_words_of_the_text_but_the_first_whatever_the_tokenizer(line_ends, rows, blank, block_size):
    rows = ["\n"] * blank + [*rows[:1], " \n", *rows[1:]]  # WikiText has blank lines, and begins with one
    for tokenizer in TOKENIZERS.values():
        assume(len(tokenizer("".join(rows), add_special_tokens=False)["input_ids"]) >= block_size)
        blocks = pack_blocks(data(rows), tokenizer, block_size, line_ends=line_ends)
        assert sum(blocks["num_words"]) == words_of(rows, line_ends) - 1


@line_ends
@settings(max_examples=10)
@given(rows=ROWS)
def test_sentences_have_the_words_of_the_text_whatever_the_tokenizer(line_ends, rows):
    for tokenizer in TOKENIZERS.values():
        found = sentence_rows(data(rows), tokenizer, 99, "conditional", line_ends=line_ends)
        assert found["num_words"][:] == [words_of([row], line_ends) for row in rows]


@line_ends
@settings(max_examples=10)
@given(rows=ROWS, block_size=st.integers(4, 12))
def test_wrapped_blocks_drop_the_words_that_begin_in_the_tokens_they_drop_and_no_others(line_ends, rows, block_size):
    for tokenizer in TOKENIZERS.values():
        whole = sentence_rows(data(rows), tokenizer, 99, "conditional", line_ends=line_ends)
        begins = tokenizer.bos_token_id is not None or tokenizer.cls_token_id is not None
        room = block_size - 1 - begins
        num_tokens = sum(len(ids) - begins for ids in whole["input_ids"])
        assume(num_tokens >= room)
        blocks = wrapped_blocks(data(rows), tokenizer, block_size, line_ends=line_ends)
        dropped = words_of(rows, line_ends) - sum(blocks["num_words"])
        assert 0 <= dropped <= num_tokens % room


@pytest.mark.parametrize(("one", "other"), [("कि", "कु"), ("हिन्दी", "हुनादु"), ("هُوَ", "هَوُ"), ("cafe\u0301", "cafe")])
def test_words_that_differ_in_marks_alone_are_different(one, other):
    assert word_runs(one) != word_runs(other)


def test_a_word_is_the_same_in_composed_and_in_decomposed_form():
    assert word_runs("CAFÉ, thé") == word_runs("cafe\u0301 the\u0301") == ["café", "thé"]
