from functools import partial
from itertools import chain, islice, pairwise

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from hf_targets.data import blocks
from hf_targets.data.blocks import check_token_ids, enclosed_blocks, pack_blocks
from hf_targets.data.tokenization import train_bpe_tokenizer, train_masking_tokenizer, word_level_tokenizer
from hf_targets.maths.losses import IGNORED

SENTENCES = ["the cat sat on the mat\n", "a dog saw the cat\n", "\n", "the mat is flat and the cat is fat\n"]
BPE = train_bpe_tokenizer(SENTENCES, vocab_size=280)
WORDS = word_level_tokenizer(SENTENCES)
ALPHABET = st.sampled_from("ab é€😀\n\t\x1c\u2028\u200b<>|")
TEXTS = st.lists(st.text(ALPHABET | st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=6)
LONG_ENOUGH = TEXTS | TEXTS.map(lambda texts: [*texts, SENTENCES[3]])  # half of them fill a block, of words too


def stream(texts, tokenizer):
    return list(chain.from_iterable(tokenizer(texts, add_special_tokens=False)["input_ids"]))


def packed(texts, tokenizer, block_size):
    return pack_blocks(Dataset.from_dict({"text": texts}), tokenizer, block_size).to_list()


def num_words(blocks):
    return [block["num_words"] for block in blocks]


def targets(block):
    """What a model that shifts labels itself is asked to predict."""
    return [label for label in block["labels"][1:] if label != IGNORED]


tokenizers = pytest.mark.parametrize("tokenizer", [BPE, WORDS], ids=["bpe", "words"])


@tokenizers
@given(texts=LONG_ENOUGH, block_size=st.integers(2, 9))
def test_blocks_overlap_by_one_token_and_every_token_but_the_first_is_a_target_once(tokenizer, texts, block_size):
    ids = stream(texts, tokenizer)
    assume(len(ids) >= block_size)
    blocks = packed(texts, tokenizer, block_size)
    *full, last = blocks
    assert all(block["attention_mask"] == [1] * block_size and block["labels"] == block["input_ids"] for block in full)
    length = sum(last["attention_mask"])
    assert length >= 2, "a block without a target"
    assert last["attention_mask"] == [1] * length + [0] * (block_size - length)
    assert last["labels"] == last["input_ids"][:length] + [IGNORED] * (block_size - length)
    assert last["input_ids"][length:] == [tokenizer.pad_token_id] * (block_size - length)
    real = [block["input_ids"][: sum(block["attention_mask"])] for block in blocks]
    assert all(first[-1] == second[0] for first, second in pairwise(real))
    assert [real[0][0], *chain.from_iterable(ids[1:] for ids in real)] == ids
    assert list(chain.from_iterable(map(targets, blocks))) == ids[1:]
    if tokenizer is WORDS:
        assert num_words(blocks) == [len(targets(block)) for block in blocks]


@given(texts=LONG_ENOUGH, block_size=st.integers(2, 9))
def test_a_byte_level_word_is_counted_in_the_block_that_predicts_its_first_byte(texts, block_size):
    ids = stream(texts, BPE)
    assume(len(ids) >= block_size)
    lengths = [num_bytes(BPE.convert_ids_to_tokens(id_)) for id_ in ids]
    ends = np.cumsum(lengths)
    rows = np.cumsum([0] + [len(text.encode()) for text in texts])
    positions = [rows[row] + start for row, text in enumerate(texts) for start in first_bytes_of_words(text)]
    owners = np.searchsorted(ends, positions[1:], side="right").clip(min=1)  # nothing predicts the first word
    expected = [
        int(((owners > first) & (owners < first + block_size)).sum())
        for first in range(0, len(ids) - 1, block_size - 1)
    ]
    blocks = packed(texts, BPE, block_size)
    assert num_words(blocks) == expected
    assert sum(expected) == max(0, len(positions) - 1)


def first_bytes_of_words(text):
    spaces = [True, *(character.isspace() for character in text)]
    return [
        len(text[:index].encode())
        for index, character in enumerate(text)
        if character == "\n" or (spaces[index] and not character.isspace())
    ]


def num_bytes(token):
    return 13 if token == "<|endoftext|>" else 7 if token == "<|pad|>" else len(token)


def test_a_word_whose_first_character_the_tokenizer_drops_is_counted_once():
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, "?": 3}, unk_token="?"))
    backend.normalizer = normalizers.Replace("x", "")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    dropping = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
    assert num_words(packed(["a xb c x"], dropping, 2)) == [1, 2]  # the last x has no token: it goes to c


def test_end_tokens_written_out_in_the_text_count_as_the_words_they_are():
    assert num_words(packed(["a <eos> b\n"], WORDS, 4)) == [3]
    assert num_words(packed(["a <|endoftext|> b\n"], BPE, 6)) == [3]


def test_rows_are_joined_the_same_however_many_there_are_to_a_batch(monkeypatch):
    whole = packed(SENTENCES, WORDS, 5)
    monkeypatch.setattr("hf_targets.data.token_rows.ROWS_AT_ONCE", 1)
    assert packed(SENTENCES, WORDS, 5) == whole


@pytest.mark.parametrize(
    ("column", "texts", "tokenizer", "block_size", "says"),
    [
        ("text", SENTENCES, BPE, 1, "block_size"),
        ("text", ["a b"], BPE, 4, "fill"),
        ("sentence", SENTENCES, BPE, 4, "column text"),
        ("text", SENTENCES, ByT5Tokenizer(), 4, "slow"),
    ],
)
def test_texts_that_give_no_blocks_are_refused(column, texts, tokenizer, block_size, says):
    with pytest.raises(ValueError, match=says):
        pack_blocks(Dataset.from_dict({column: texts}), tokenizer, block_size)


@pytest.mark.parametrize(("ids", "says"), [([[0, 1], [2, 9]], r"\[0, 8\], got 9"), ([[0, -1]], "got -1")])
def test_ids_without_an_embedding_are_refused(ids, says):
    with pytest.raises(ValueError, match=says):
        check_token_ids(Dataset.from_dict({"input_ids": ids}), {"input_ids": 9, "labels": 9})


@pytest.mark.parametrize("make", [partial(pack_blocks, block_size=6), partial(enclosed_blocks, block_size=6)])
def test_a_stream_is_packed_in_parts_and_goes_on_from_any_block(make, monkeypatch):
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 2)
    tokenizer = BPE if make.func is pack_blocks else train_masking_tokenizer(SENTENCES, vocab_size=280)
    texts = Dataset.from_dict({"text": [*SENTENCES, "\n", "\n", "a"], "other": list(range(7))})
    parts = [make(texts.select(range(begin, begin + 2)), tokenizer).to_list() for begin in (0, 2)]
    stream = make(texts.to_iterable_dataset(), tokenizer)
    rows = list(stream)
    assert rows[: len(parts[0]) + len(parts[1])] == parts[0] + parts[1]
    for count in range(len(rows)):
        next(islice(stream, count, None))
        again = make(texts.to_iterable_dataset(), tokenizer)
        again.load_state_dict(stream.state_dict())
        assert list(again) == rows[count + 1 :]
