import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from hf_targets.data.tokenization import tokenizer_fingerprint, train_bpe_tokenizer
from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.vocabulary.vocabulary import FILE, PhraseVocabulary
from tests.small_tokenizers import BPE, LEGACY, METASPACE, SENTENCES, TEXTS, WORDS, every_tokenizer

VOCAB = 1000


def state(vocabulary):
    ids = list(vocabulary)
    return {id_: (vocabulary.token_ids(id_), vocabulary.text(id_), vocabulary.sources(id_)) for id_ in ids}


@every_tokenizer
@settings(max_examples=15)
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


def test_another_tokenizer_is_refused(saved):
    vocabulary = PhraseVocabulary.load(saved, BPE)
    again, other = train_bpe_tokenizer(SENTENCES, vocab_size=300), train_bpe_tokenizer(SENTENCES[:1], vocab_size=300)
    assert state(PhraseVocabulary.load(saved, again)) == state(vocabulary)
    with pytest.raises(ValueError, match="another tokenizer"):
        PhraseVocabulary.load(saved, other)
    assert len({tokenizer_fingerprint(one) for one in (BPE, METASPACE, LEGACY, WORDS, again, other)}) >= 4


@pytest.mark.parametrize("change", ["array gone", "another token", "truncated", "missing"])
def test_a_damaged_file_is_refused_by_name(change, saved):
    with safe_open(saved / FILE, "numpy") as content:
        metadata, arrays = content.metadata(), load_file(saved / FILE)
    if change == "array gone":
        arrays.pop("sources")
    if change == "another token":
        arrays["tokens"][3] += 1
    save_file(arrays, saved / FILE, metadata)
    if change == "truncated":
        (saved / FILE).write_bytes((saved / FILE).read_bytes()[:-40])
    if change == "missing":
        (saved / FILE).unlink()
    with pytest.raises(ValueError, match=FILE):
        PhraseVocabulary.load(saved, BPE)
