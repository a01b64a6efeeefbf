import os

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_targets.data.corpora import load_corpus
from hf_targets.data.tokenization import train_bpe_tokenizer, train_joint_bpe, word_level_tokenizer

SENTENCES = ["the cat sat on the mat\n", "a dog saw the cat\n", "the <unk> is flat\n"]
PAIRS = Dataset.from_dict(
    {
        "source": ["ein Hund läuft über die Straße .", "die Katze sieht den Hund ."] * 3,
        "target": ["a dog runs across the street .", "the cat sees the dog ."] * 3,
    }
)
JOINT = train_joint_bpe(PAIRS, 300, model_max_length=64)
SENTENCE = "the cat saw <unk> and Ünïcode 😀 words\n"


@pytest.fixture(scope="module")
def bpe():
    return train_bpe_tokenizer(SENTENCES, vocab_size=270, model_max_length=64)


@pytest.fixture(scope="module")
def words():
    return word_level_tokenizer(SENTENCES)


@given(text=st.text())
@example("  two  spaces , and ' s .")
@example("<|endoftext|> <|pad|>")
def test_byte_level_pieces_decode_to_the_text_they_encode(bpe, text):
    assert bpe.decode(bpe(text)["input_ids"]) == text


def test_the_same_texts_give_the_same_tokenizer(bpe):
    again = train_bpe_tokenizer(iter(SENTENCES), vocab_size=270, model_max_length=64)
    assert again.backend_tokenizer.to_str() == bpe.backend_tokenizer.to_str()
    assert word_level_tokenizer(SENTENCES[::-1]).get_vocab() == word_level_tokenizer(SENTENCES).get_vocab()
    rows = Dataset.from_dict({"text": SENTENCES})
    for split in (rows, rows.to_iterable_dataset()):
        assert train_bpe_tokenizer(split, vocab_size=270).get_vocab() == bpe.get_vocab()
        assert word_level_tokenizer(split).get_vocab() == word_level_tokenizer(SENTENCES).get_vocab()
    assert train_joint_bpe(iter([*PAIRS["source"], *PAIRS["target"]]), 300).get_vocab() == JOINT.get_vocab()


def test_padding_is_a_token_of_its_own_and_the_end_of_text_is_begin_end_and_unknown(bpe):
    assert bpe.bos_token == bpe.eos_token == bpe.unk_token == "<|endoftext|>"
    assert bpe.pad_token == "<|pad|>"
    assert bpe.pad_token_id != bpe.eos_token_id
    assert bpe.model_max_length == 64
    assert bpe("a")["input_ids"] == bpe("a", add_special_tokens=False)["input_ids"]


def test_a_vocabulary_is_as_large_as_asked_while_there_are_pairs_to_join(bpe):
    assert len(bpe) == 270
    assert len(train_bpe_tokenizer(["no"], vocab_size=1000)) == 259


def test_a_vocabulary_without_room_for_every_byte_is_refused():
    for train, least in ((train_bpe_tokenizer, 258), (train_joint_bpe, 259)):
        with pytest.raises(ValueError, match=rf"at least {least}.*got {least - 1}"):
            train(SENTENCES, vocab_size=least - 1)


@pytest.mark.parametrize("texts", ["the cat", DatasetDict(train=PAIRS), PAIRS, ["", " "], ["a", None]])
def test_one_string_all_splits_other_columns_and_texts_without_words_are_refused(texts):
    with pytest.raises(ValueError, match="text"):
        word_level_tokenizer(texts)


@pytest.mark.parametrize("name", ["bpe", "words", "joint"])
def test_a_saved_tokenizer_comes_back_the_same(name, request, tmp_path):
    tokenizer = JOINT if name == "joint" else request.getfixturevalue(name)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.model_max_length == tokenizer.model_max_length
    for text in [SENTENCE, "a<unk>b  c ,\x1c<|pad|> </s>\n\n"]:
        assert dict(loaded(text)) == dict(tokenizer(text))
        assert loaded.decode(loaded(text)["input_ids"]) == tokenizer.decode(tokenizer(text)["input_ids"])


def test_words_are_numbered_by_frequency_and_then_alphabetically(words):
    by_id = words.convert_ids_to_tokens(range(len(words)))
    assert by_id == ["the", "<eos>", "cat", "<unk>", "a", "dog", "flat", "is", "mat", "on", "sat", "saw", "<pad>"]
    assert word_level_tokenizer(["b b a"]).get_vocab() == {"b": 0, "a": 1, "<unk>": 2, "<eos>": 3, "<pad>": 4}


def test_new_words_and_the_written_unknown_word_are_the_same_token(words):
    unknown = words.unk_token_id
    assert words("zebra <unk> un<unk>known")["input_ids"] == [unknown, unknown, unknown]


@given(text=st.text(st.sampled_from("ab \n\t\r\x1c\x85\u2028\u3000é<>") | st.characters(codec="utf-8")))
def test_there_is_one_token_for_each_word_and_each_line_end(words, text):
    assert len(words(text)["input_ids"]) == len(text.split()) + text.count("\n")


@given(texts=st.lists(st.text(), min_size=1).filter(lambda texts: any(text.split() for text in texts)))
def test_no_word_of_the_training_text_is_unknown(texts):
    tokenizer = word_level_tokenizer(texts)
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == text.replace("\n", " <eos> ").split()


@pytest.mark.skipif("HF_TARGETS_DATA" not in os.environ, reason="HF_TARGETS_DATA names no folder with the benchmarks")
def test_penn_treebank_has_the_published_numbers_of_words_and_tokens():
    corpus = load_corpus("ptb")
    tokenizer = word_level_tokenizer(corpus["train"]["text"])
    assert len(tokenizer) == 10_001  # and <pad>
    assert tokenizer.pad_token_id == 10_000
    assert sum(len(text.split()) + text.count("\n") for text in corpus["train"]["text"]) == 929_589
    for split, expected in {"validation": 73_760, "test": 82_430}.items():
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(list(corpus[split]["text"]))
        assert sum(map(len, encodings)) == expected


@given(text=st.text() | st.text(st.sampled_from(" \t\r\n\x1c\x85\u3000.,'</s>padunkäß😀")))
@example("</s> <pad> a<unk>b ")
@example("  two  spaces , and ' s .\n")
def test_any_text_comes_back_as_it_was_and_ends_with_one_end_token(text):
    ids = JOINT(text)["input_ids"]
    assert JOINT.decode(ids, skip_special_tokens=True) == text
    assert [id_ for id_ in ids if id_ in JOINT.all_special_ids] == [JOINT.eos_token_id] == ids[-1:]


def test_special_tokens_have_the_first_ids_and_the_vocabulary_the_size_asked_for():
    assert (JOINT.pad_token_id, JOINT.eos_token_id, JOINT.unk_token_id) == (0, 1, 2)
    assert JOINT.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]
    assert JOINT.bos_token is None
    assert len(JOINT) == 300
    assert len(train_joint_bpe(["no"], 1000)) == 260


def test_inputs_are_ids_and_a_mask_and_a_batch_pads_with_the_padding_token():
    batch = JOINT(["a", "a dog"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"][0][-1] == JOINT.pad_token_id and batch["attention_mask"][0][-1] == 0
    assert JOINT("a", "b")["input_ids"] == JOINT("a")["input_ids"] + JOINT("b")["input_ids"]
    assert JOINT(text_target="a")["input_ids"] == JOINT("a")["input_ids"]
