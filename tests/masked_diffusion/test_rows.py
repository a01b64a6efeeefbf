from itertools import chain

import pytest
import torch
from datasets import Dataset
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizerFast

from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
from hf_targets.masked_diffusion.rows import (
    DiffusionCollator,
    add_missing_tokens,
    mask_token_id,
    sentence_rows,
    wrapped_blocks,
)
from hf_targets.maths.losses import IGNORED

SENTENCES = ["the cat sat on the mat\n", "a dog saw the cat\n", "\n", "the mat is flat and the cat is fat\n"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "dog", "##s", "mask", "[", "]", "."]
BPE = train_bpe_tokenizer(SENTENCES, vocab_size=280)
BERT = BertTokenizer(vocab={piece: id_ for id_, piece in enumerate(PIECES)})
WORDS = word_level_tokenizer(SENTENCES)  # it has an end token and no begin token
AROUND = {BPE: (["<|endoftext|>"], "<|endoftext|>"), BERT: (["[CLS]"], "[SEP]"), WORDS: ([], "<eos>")}
ALPHABET = st.sampled_from("ab é€😀\n\t\x1c\u2028\u200b<>|") | st.characters(codec="utf-8")
TEXTS = st.lists(st.text(ALPHABET, max_size=30) | st.sampled_from([*SENTENCES, "the cats.\n"]), min_size=1, max_size=6)
tokenizers = pytest.mark.parametrize("tokenizer", [BPE, BERT, WORDS], ids=["bpe", "bert", "words"])
makers = pytest.mark.parametrize("make", [sentence_rows, wrapped_blocks])


def plain(vocab, **special_tokens):
    backend = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    backend.normalizer = normalizers.Replace("x", "")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?", **special_tokens)


def data(texts):
    return Dataset.from_dict({"text": texts})


def tokens(texts, tokenizer):
    """The ids of each row that has any."""
    rows = [text.rstrip("\n") for text in texts if text.strip()]
    ids = [tokenizer(row, add_special_tokens=False, split_special_tokens=True)["input_ids"] for row in rows]
    return [row for row in ids if row]


def around(tokenizer):
    begin, end = AROUND[tokenizer]
    return tokenizer.convert_tokens_to_ids(begin), tokenizer.convert_tokens_to_ids(end)


@tokenizers
@given(texts=TEXTS, max_length=st.integers(3, 20))
def test_a_sentence_is_a_row_of_its_own_length_and_what_is_cut_off_is_not_its_end(tokenizer, texts, max_length):
    sentences = tokens(texts, tokenizer)
    assume(sentences)
    begin, end = around(tokenizer)
    rows = sentence_rows(data(texts), tokenizer, max_length, "conditional").to_list()
    room = max_length - len(begin) - 1
    assert [row["input_ids"] for row in rows] == [[*begin, *ids[:room], end] for ids in sentences]
    for row in rows:
        assert row["labels"] == row["input_ids"]
        assert row["attention_mask"] == [1] * len(row["input_ids"])


@tokenizers
@given(texts=TEXTS, block_size=st.integers(3, 9))
def test_blocks_hold_the_documents_each_with_its_end_but_for_less_than_a_block(tokenizer, texts, block_size):
    begin, end = around(tokenizer)
    stream = list(chain.from_iterable([*ids, end] for ids in tokens(texts, tokenizer)))
    room = block_size - len(begin) - 1
    assume(len(stream) >= room)
    blocks = wrapped_blocks(data(texts), tokenizer, block_size).to_list()
    inner = [ids for block in blocks for ids in block["input_ids"][len(begin) : -1]]
    assert inner == stream[: len(inner)]
    assert len(stream) - len(inner) < room
    for block in blocks:
        assert len(block["input_ids"]) == block_size
        assert block["input_ids"][: len(begin)] == begin and block["input_ids"][-1] == end
        assert block["labels"] == block["input_ids"] and block["attention_mask"] == [1] * block_size


@pytest.mark.parametrize("max_length", range(2, 11))
def test_each_token_of_a_whole_word_tokenizer_is_a_word_however_a_row_is_cut(max_length):
    for row in sentence_rows(data(SENTENCES), WORDS, max_length, "conditional").to_list():
        assert row["num_words"] == len(row["input_ids"])
    for block in wrapped_blocks(data(SENTENCES), WORDS, max_length).to_list():
        assert block["num_words"] == max_length - 1  # the end token around the block is no word


def test_a_word_that_is_cut_in_two_is_counted_where_it_begins():
    texts = data(["the cats"])
    assert BERT.tokenize("the cats") == ["the", "cat", "##s"]
    assert [sentence_rows(texts, BERT, length)["num_words"][0] for length in (3, 4, 5)] == [2, 3, 3]
    assert wrapped_blocks(texts, BERT, 4)["num_words"][:] == [2, 1]


@makers
@tokenizers
def test_rows_are_the_same_however_many_there_are_to_a_batch(make, tokenizer, monkeypatch):
    whole = make(data(SENTENCES), tokenizer, 5).to_list()
    for module in ("data.token_rows", "masked_diffusion.rows"):
        monkeypatch.setattr(f"hf_targets.{module}.ROWS_AT_ONCE", 1)
    assert make(data(SENTENCES), tokenizer, 5).to_list() == whole


@makers
def test_special_tokens_written_out_in_the_text_are_ordinary_text(make):
    masked = train_bpe_tokenizer(SENTENCES, vocab_size=280)
    masked.add_special_tokens({"mask_token": "<|mask|>"})
    for tokenizer, text in ((masked, "a<|mask|>b<|pad|>c<|endoftext|>"), (BERT, "the [MASK] [PAD] [CLS] mask")):
        before = tokenizer(text)["input_ids"]
        assert mask_token_id(tokenizer) in before
        row = make(data([text]), tokenizer, 9)[0]["input_ids"]
        assert tokenizer.mask_token_id not in row and tokenizer.pad_token_id not in row
        assert tokenizer(text)["input_ids"] == before, "the tokenizer itself still knows them"


@pytest.mark.parametrize("padding", [False, True])
def test_tokens_that_a_tokenizer_lacks_are_added_behind_its_own_and_no_others(padding):
    lacking = plain({"a": 0, "?": 1, "e": 2}, eos_token="e", pad_token="e")
    with pytest.raises(ValueError, match="mask token"):
        mask_token_id(lacking)
    tokenizer = add_missing_tokens(lacking, padding=padding)
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (3, 4 if padding else 2)
    assert len(add_missing_tokens(tokenizer, padding=padding)) == 4 + padding
    assert len(add_missing_tokens(BERT, padding=True)) == len(PIECES)


@tokenizers
def test_the_collator_makes_the_batch_of_transformers_own_where_that_makes_one(tokenizer):
    rows = sentence_rows(data(SENTENCES), tokenizer, 8, "conditional").to_list()
    wanted = DataCollatorForSeq2Seq(tokenizer, padding="longest", label_pad_token_id=IGNORED)(rows)
    batch = DiffusionCollator(tokenizer)(rows)
    assert set(batch) == set(wanted) == {"input_ids", "attention_mask", "labels", "num_words"}
    for name, values in batch.items():
        assert values.dtype == torch.int64
        assert torch.equal(values, wanted[name]), name


@pytest.mark.parametrize(
    ("tokenizer", "pad_id"),
    [
        (plain({"a": 0, "?": 1, "s": 2, "e": 3, "p": 4}, sep_token="s", eos_token="e", pad_token="p"), 4),
        (plain({"a": 0, "?": 1, "s": 2, "e": 3}, sep_token="s", eos_token="e", padding_side="left"), 3),
        (plain({"a": 0, "?": 1, "s": 2}, sep_token="s"), 2),
        (plain({"?": 0, "a": 1}), 0),
    ],
)
def test_padding_is_on_the_right_and_an_end_token_without_a_padding_token_and_else_zero(tokenizer, pad_id):
    batch = DiffusionCollator(tokenizer)([{"input_ids": [7, 8, 9]}, {"input_ids": torch.tensor([5])}])
    assert batch["input_ids"].tolist() == [[7, 8, 9], [5, pad_id, pad_id]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[7, 8, 9], [5, IGNORED, IGNORED]]
    assert len(batch) == 3
