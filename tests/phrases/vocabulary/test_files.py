import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.vocabulary.files import FILE, read_phrases, write_phrases
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.small_tokenizers import BPE, TEXTS, every_tokenizer

VOCAB = 1000


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
    """Return a folder with phrases of three documents, one of them removed."""
    texts = {"one": "the cat sat on a mat", "two": "the cat ran", "three": "a dog sat on the cat"}
    vocabulary = PhraseVocabulary.from_documents(texts, BPE, TokenNgrams(2, 3), vocab_size=VOCAB)
    vocabulary.remove([VOCAB + 1])
    vocabulary.save(tmp_path)
    return tmp_path


def test_a_missing_or_truncated_file_is_refused_by_name(saved):
    file = saved / FILE
    content = file.read_bytes()
    for length in range(0, len(content), max(1, len(content) // 40)):
        file.write_bytes(content[:length])
        with pytest.raises(ValueError, match=FILE):
            PhraseVocabulary.load(saved, BPE)
    file.unlink()
    with pytest.raises(ValueError, match=FILE):
        PhraseVocabulary.load(saved, BPE)


def test_a_save_that_fails_leaves_the_one_before(saved, monkeypatch):
    before = state(PhraseVocabulary.load(saved, BPE))

    def fail(*_):
        raise OSError("full")

    monkeypatch.setattr("hf_targets.phrases.vocabulary.files.save_file", fail)
    with pytest.raises(OSError, match="full"):
        PhraseVocabulary.from_phrases(["a dog"], BPE).save(saved)
    assert [path.name for path in saved.iterdir()] == [FILE]
    assert state(PhraseVocabulary.load(saved, BPE)) == before


def set_item(name, position, value):
    return lambda _, arrays: arrays[name].__setitem__(position, value)


def phrase_twice(_, arrays):
    first, second = (arrays["offsets"][slot] for slot in (2, 4))  # both of two tokens
    arrays["tokens"][second : second + 2] = arrays["tokens"][first : first + 2]


CHANGES = {
    "array gone": lambda _, arrays: arrays.pop("sources"),
    "other type": lambda _, arrays: arrays.update(tokens=arrays["tokens"].astype("i4")),
    "other shape": lambda _, arrays: arrays.update(sources=arrays["sources"][:, :3]),
    "offset not rising": set_item("offsets", 2, 0),
    "offset of no token": set_item("offsets", -1, 2**40),
    "fewer phrases": lambda _, arrays: arrays.update(is_alive=arrays["is_alive"][1:]),
    "token above": set_item("tokens", 3, VOCAB),
    "token below": set_item("tokens", 3, -1),
    "special token": set_item("tokens", 3, BPE.all_special_ids[0]),
    "phrase twice": phrase_twice,
    "source of a removed phrase": set_item("sources", (0, 0), VOCAB + 1),
    "source of no phrase": set_item("sources", (0, 0), 2**62),
    "source of no document": set_item("sources", (0, 1), 3),
    "source of no characters": set_item("sources", (0, 3), -1),
    "setting gone": lambda fields, _: fields.pop("documents"),
    "setting of another type": lambda fields, _: fields.update(vocab_size="many"),
    "document twice": lambda fields, _: fields.update(documents=["one", "two", "two"]),
    "small vocabulary": lambda fields, _: fields.update(vocab_size=20),
    "other tokenizer": lambda fields, _: fields.update(tokenizer="other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_content_that_breaks_a_rule_is_refused(saved, change):
    _, fields, arrays = read_phrases(saved, [])
    CHANGES[change](fields, arrays)
    write_phrases(saved, fields, arrays)
    with pytest.raises(ValueError, match=FILE):
        PhraseVocabulary.load(saved, BPE)


def test_what_was_removed_leaves_no_document_in_the_file(saved):
    vocabulary = PhraseVocabulary.load(saved, BPE)
    assert set(read_phrases(saved, [])[1]["documents"]) == {"one", "two", "three"}
    vocabulary.remove(list(vocabulary))
    vocabulary.save(saved)
    assert read_phrases(saved, [])[1]["documents"] == []
