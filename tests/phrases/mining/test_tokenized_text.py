import copy

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import ByT5Tokenizer

from hf_targets.phrases.mining.tokenized_text import TokenizedText
from tests.small_tokenizers import BPE, METASPACE, WORDS

TRIMMED = copy.deepcopy(BPE)
TRIMMED.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
tokenizers = pytest.mark.parametrize(
    "tokenizer", [BPE, TRIMMED, METASPACE, WORDS], ids=["bpe", "trimmed", "metaspace", "words"]
)
TEXTS = st.text(st.sampled_from("the cat\n é€😀  ,.") | st.characters(codec="utf-8"), max_size=40)


def decoded(ids, tokenizer):
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def id_lists(tokenizer, min_size=0):
    return st.lists(st.integers(0, len(tokenizer) - 1), min_size=min_size, max_size=20)


@tokenizers
@given(data=st.data())
def test_any_ids_keep_their_number_and_cover_their_text_in_order(tokenizer, data):
    ids = data.draw(id_lists(tokenizer))
    text = TokenizedText.from_ids(ids, tokenizer)
    assert text.ids == ids
    assert len(text) == len(ids) == len(text.offsets)
    starts, ends = text.offsets.T
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(ends) >= 0).all()
    assert (starts <= ends).all()
    assert ((starts >= 0) & (ends <= len(text.text))).all()
    covered = np.zeros(len(text.text), bool)
    for start, end in text.offsets:
        covered[start:end] = True
    assert not "".join(np.array(list(text.text))[~covered]).strip(), "only white space is in no token"


@tokenizers
@given(data=st.data(), text=TEXTS)
def test_a_block_of_a_text_has_the_characters_that_the_tokenizer_decodes(tokenizer, data, text):
    ids = TokenizedText.from_text(text, tokenizer).ids
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(ids))] * 2)))
    block = ids[first:last]
    text, expected = TokenizedText.from_ids(block, tokenizer).text, decoded(block, tokenizer)
    assert text == expected or "\ufffd" in expected  # bytes that are no character may spoil what is before them


@pytest.mark.parametrize("tokenizer", [BPE, TRIMMED, METASPACE], ids=["bpe", "trimmed", "metaspace"])
@given(text=TEXTS)
def test_the_ids_of_a_text_give_the_text_and_its_offsets_again(tokenizer, text):
    expected = TokenizedText.from_text(text, tokenizer)
    assume(decoded(expected.ids, tokenizer) == text)
    found = TokenizedText.from_ids(expected.ids, tokenizer)
    assert (found.text, found.ids, found.special_ids) == (expected.text, expected.ids, expected.special_ids)
    np.testing.assert_array_equal(found.offsets, expected.offsets)


def test_a_block_that_begins_inside_a_word_is_cut_token_by_token():
    ids = METASPACE("the hat sat", add_special_tokens=False)["input_ids"]
    inside = next(index for index in range(1, len(ids)) if decoded(ids[index:], METASPACE).startswith("at"))
    text = TokenizedText.from_ids(ids[inside:], METASPACE)
    assert METASPACE(text.text, add_special_tokens=False)["input_ids"] != text.ids, "else this tests nothing"
    assert [text.text[start:end].strip() for start, end in text.offsets] == [
        decoded([id_], METASPACE).strip() for id_ in text.ids
    ]


def test_tokens_inside_a_character_all_cover_it():
    text = TokenizedText.from_text("a😀b", BPE)
    assert text.offsets.tolist() == [[0, 1], *[[1, 2]] * 4, [2, 3]]
    cut = TokenizedText.from_ids([*text.ids[2:], text.ids[1]], BPE)  # neither begins nor ends with a whole character
    assert cut.text == decoded(cut.ids, BPE)
    assert len(cut.text) == cut.offsets[-1, 1]


def test_special_tokens_are_kept_in_the_text_and_known():
    end = BPE.eos_token_id
    text = TokenizedText.from_ids([*BPE("the cat")["input_ids"], end], BPE)
    assert text.text == "the cat<|endoftext|>"
    assert end in text.special_ids
    assert text.without_special(np.array([[0, 2], [1, len(text)]])).tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("offsets", "edges"),
    [
        ([[0, 1], [1, 3], [3, 5]], ([0, 1, 2], [1, 2, 3])),  # the space leads
        ([[0, 1], [2, 3], [4, 5]], ([0, 1, 2], [1, 2, 3])),  # the space is in no token
        ([[0, 2], [2, 4], [4, 5]], ([0, 1, 2], [1, 2, 3])),  # the space follows
        ([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]], ([0, 2, 4], [1, 3, 5])),  # the space is a token
        ([[0, 3], [3, 5]], ([0, -1, 1], [-1, 1, 2])),  # one token for two words
        ([[0, 0], [0, 1], [0, 1], [1, 3], [3, 5]], ([1, 3, 4], [3, 4, 5])),  # an empty token, and half characters
        ([[0, 1], [0, 3], [2, 3], [3, 5]], ([0, -1, 3], [-1, 3, 4])),  # halves of two characters in one token
    ],
)
def test_a_word_starts_and_ends_with_the_tokens_that_are_its_own(offsets, edges):
    text = TokenizedText("a b c", list(range(len(offsets))), np.array(offsets))
    starts, ends = text.token_edges(np.array([[0, 1], [2, 3], [4, 5]]))
    assert (starts.tolist(), ends.tolist()) == edges


def test_a_token_with_a_line_end_starts_and_ends_no_word():
    text = TokenizedText("a\nb\n", [0, 1, 2], np.array([[0, 1], [1, 3], [3, 4]]))
    assert [edges.tolist() for edges in text.token_edges(np.array([[0, 1], [2, 3]]))] == [[0, -1], [1, 2]]


def test_slow_tokenizers_are_refused():
    with pytest.raises(ValueError, match="slow"):
        TokenizedText.from_text("the cat", ByT5Tokenizer())
