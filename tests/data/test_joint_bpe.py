import subprocess
import sys

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_targets.data.tokenization import train_joint_bpe

PAIRS = Dataset.from_dict(
    {
        "source": ["ein Hund läuft über die Straße .", "die Katze sieht den Hund ."] * 3,
        "target": ["a dog runs across the street .", "the cat sees the dog ."] * 3,
    }
)
TOKENIZER = train_joint_bpe(PAIRS, 300, model_max_length=64)


@settings(max_examples=200, deadline=None)
@given(text=st.text() | st.text(st.sampled_from(" \t\r\n\x1c\x85\u3000.,'</s>padunkäß😀")))
@example("</s> <pad> a<unk>b ")
@example("  two  spaces , and ' s .\n")
def test_any_text_comes_back_as_it_was_and_ends_with_one_end_token(text):
    ids = TOKENIZER(text)["input_ids"]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text
    assert [id_ for id_ in ids if id_ in TOKENIZER.all_special_ids] == [TOKENIZER.eos_token_id] == ids[-1:]


def test_special_tokens_have_the_first_ids_and_the_vocabulary_the_size_asked_for():
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id) == (0, 1, 2)
    assert TOKENIZER.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]
    assert TOKENIZER.bos_token is None
    assert len(TOKENIZER) == 300
    assert len(train_joint_bpe(["no"], 1000)) == 260


def test_words_of_both_languages_are_tokens():
    for word in (" Hund", " dog"):
        assert len(TOKENIZER(word, add_special_tokens=False)["input_ids"]) == 1


def test_inputs_are_ids_and_a_mask_and_a_batch_pads_with_the_padding_token():
    batch = TOKENIZER(["a", "a dog"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"][0][-1] == TOKENIZER.pad_token_id and batch["attention_mask"][0][-1] == 0
    assert TOKENIZER("a", "b")["input_ids"] == TOKENIZER("a")["input_ids"] + TOKENIZER("b")["input_ids"]
    assert TOKENIZER(text_target="a")["input_ids"] == TOKENIZER("a")["input_ids"]


def test_the_same_pairs_give_the_same_tokenizer_in_another_process():
    program = (
        "from tests.data.test_joint_bpe import TOKENIZER; import sys;"
        "sys.stdout.buffer.write(TOKENIZER.backend_tokenizer.to_str().encode())"
    )
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.decode()
    assert again == train_joint_bpe(PAIRS, 300).backend_tokenizer.to_str()


def test_texts_are_taken_like_pairs():
    texts = [*PAIRS["source"], *PAIRS["target"]]
    assert train_joint_bpe(iter(texts), 300).get_vocab() == TOKENIZER.get_vocab()


def test_a_saved_tokenizer_comes_back_the_same(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.model_max_length == 64 and loaded.special_tokens_map == TOKENIZER.special_tokens_map
    for text in ("ein dog", "a </s> b<pad>", ""):
        assert dict(loaded(text)) == dict(TOKENIZER(text))
        assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text


def test_test_text_and_one_string_make_no_vocabulary():
    with pytest.raises(ValueError, match=r"training split alone, got the splits \['train', 'test'\]"):
        train_joint_bpe(DatasetDict(train=PAIRS, test=PAIRS), 300)
    with pytest.raises(ValueError, match="put it in a list"):
        train_joint_bpe("the cat", 300)
    with pytest.raises(ValueError, match=r"at least 259 .*got 258"):
        train_joint_bpe(PAIRS, 258)
