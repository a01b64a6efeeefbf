from dataclasses import fields

import pytest
from datasets import Dataset

from hf_targets.data.corpora import SPLITS
from hf_targets.training.pair_settings import EncodedPairSettings, PairSettings


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.de").write_text("ein Hund\nja\n\ndie Katze sieht\n")
        (tmp_path / f"{split}.en").write_text("a dog\nyes it is so\nno\nthe cat sees\n")
    return str(tmp_path)


def test_only_train_is_filtered(folder):
    pairs = PairSettings(dataset=folder).load()
    assert tuple(pairs) == SPLITS
    assert pairs["train"]["source"][:] == ["ein Hund", "die Katze sieht"]
    assert len(pairs["validation"]) == len(pairs["test"]) == 4
    unbounded = PairSettings(dataset=folder, max_pair_ratio=None, max_pair_words=None)
    assert unbounded.load()["train"]["target"][:] == ["a dog", "yes it is so", "the cat sees"]
    assert len(PairSettings(dataset=folder, max_train_pairs=1).load()["train"]) == 1
    assert PairSettings(dataset=folder, max_eval_pairs=3).load().num_rows == {"train": 2, "validation": 3, "test": 3}


def test_pairs_become_batches_of_token_ids(folder, tmp_path):
    settings = EncodedPairSettings(dataset=folder, vocab_size=270, source_prefix="> ", batch_tokens=40)
    pairs = settings.load()
    tokenizer = settings.tokenizer_of(None, pairs)
    assert len(tokenizer) == 270
    encoded = settings.encoded(pairs, tokenizer)
    assert tuple(encoded) == SPLITS
    assert tokenizer.decode(encoded["test"][0]["input_ids"], skip_special_tokens=True) == "> ein Hund"
    batches = settings.batches(encoded["test"], shuffle=True, seed=0)
    assert sorted(row for batch in batches for row in batch) == [0, 1, 2, 3]
    tokenizer.save_pretrained(tmp_path / "saved")
    again = settings.tokenizer_of(str(tmp_path / "saved"), {"train": Dataset.from_dict({})})
    assert again.get_vocab() == tokenizer.get_vocab()


def test_every_field_has_help():
    assert all(entry.metadata["help"] for entry in fields(EncodedPairSettings))
