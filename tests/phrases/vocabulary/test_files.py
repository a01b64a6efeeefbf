import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.vocabulary.files import ARRAYS_FILE, SETTINGS_FILE
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.small_tokenizers import BPE, TEXTS, every_tokenizer


def state(vocabulary):
    ids = list(vocabulary)
    return {id_: (vocabulary.token_ids(id_), vocabulary.text(id_), vocabulary.sources(id_)) for id_ in ids}


@every_tokenizer
@settings(derandomize=True, deadline=None, max_examples=15)
@given(documents=st.lists(TEXTS, max_size=3), data=st.data())
def test_loading_gives_back_ids_texts_sources_and_what_was_removed(tmp_path_factory, tokenizer, documents, data):
    vocabulary = PhraseVocabulary.from_documents(documents, tokenizer, TokenNgrams(2, 3), vocab_size=2000)
    if len(vocabulary):
        vocabulary.remove(data.draw(st.lists(st.sampled_from(list(vocabulary)), max_size=3)))
    folder = tmp_path_factory.mktemp("phrases") / "new"
    vocabulary.save(folder)
    loaded = PhraseVocabulary.load(folder, tokenizer)
    assert state(loaded) == state(vocabulary)
    assert (loaded.vocab_size, loaded.num_ids) == (vocabulary.vocab_size, vocabulary.num_ids)
    assert all(np.array_equal(a, b) for a, b in zip(loaded.arrays(), vocabulary.arrays(), strict=True))
    assert (
        loaded.add_token_ids([[5, 4, 5, 4]]) == vocabulary.add_token_ids([[5, 4, 5, 4]]) == [2000 + loaded.num_ids - 1]
    )


@pytest.fixture
def saved(tmp_path):
    vocabulary = PhraseVocabulary.from_documents({"name": "the cat sat on a mat"}, BPE, TokenNgrams(2, 3))
    vocabulary.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [ARRAYS_FILE, SETTINGS_FILE])
def test_a_missing_truncated_or_altered_file_is_refused_by_name(saved, name):
    file = saved / name
    content = file.read_bytes()
    positions = range(0, len(content), max(1, len(content) // 40))
    damaged = [content[:position] for position in positions]
    damaged += [content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :] for position in positions]
    for damage in damaged:
        file.write_bytes(damage)
        with pytest.raises(ValueError, match=name):
            PhraseVocabulary.load(saved, BPE)
    file.unlink()
    with pytest.raises(ValueError, match=f"{name}.*cannot be read"):
        PhraseVocabulary.load(saved, BPE)
    file.write_bytes(content)
    PhraseVocabulary.load(saved, BPE)


@pytest.mark.parametrize("name", [ARRAYS_FILE, SETTINGS_FILE])
def test_a_save_that_fails_leaves_the_one_before(saved, monkeypatch, name):
    before, write = state(PhraseVocabulary.load(saved, BPE)), Path.write_bytes

    def fail(path, content):
        if path.name == name:
            raise OSError("full")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="full"):
        PhraseVocabulary.from_phrases(["a dog"], BPE).save(saved)
    assert sorted(path.name for path in saved.iterdir()) == sorted([ARRAYS_FILE, SETTINGS_FILE])
    assert state(PhraseVocabulary.load(saved, BPE)) == before


def test_what_was_removed_leaves_no_document_in_the_files(saved):
    vocabulary = PhraseVocabulary.load(saved, BPE)
    assert "name" in json.loads((saved / SETTINGS_FILE).read_text())["documents"]
    vocabulary.remove(list(vocabulary))
    vocabulary.save(saved)
    assert json.loads((saved / SETTINGS_FILE).read_text())["documents"] == []


def test_files_of_two_saves_are_not_mixed(saved, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    PhraseVocabulary.from_phrases(["a dog"], BPE).save(other)
    (saved / ARRAYS_FILE).write_bytes((other / ARRAYS_FILE).read_bytes())
    with pytest.raises(ValueError, match=f"{ARRAYS_FILE}.*not saved together"):
        PhraseVocabulary.load(saved, BPE)
