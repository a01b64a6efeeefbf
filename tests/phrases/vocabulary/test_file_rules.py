"""Phrase files that break a rule though their checksums are right: the error names the file and the rule."""

import re
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.vocabulary.files import ARRAYS_FILE, SETTINGS_FILE, read_phrases, write_phrases
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.small_tokenizers import BPE

VOCAB = 1000
BIG = st.integers(VOCAB, 2**63 - 1)
NEGATIVE = st.integers(-(2**63), -1)
OTHER_TYPES = [None, True, 1.5, "text", ["text"], {"a": 1}, 3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with phrases of three documents, one of them removed."""
    texts = {"one": "the cat sat on a mat", "two": "the cat ran", "three": "a dog sat on the cat"}
    vocabulary = PhraseVocabulary.from_documents(texts, BPE, TokenNgrams(2, 3), vocab_size=VOCAB)
    vocabulary.remove([VOCAB + 1])
    folder = tmp_path_factory.mktemp("phrases")
    vocabulary.save(folder)
    return folder


def loaded_again(saved, folder, change):
    """Change the content of files, write it with the checksums of what it is now, and load it."""
    fields, arrays = read_phrases(saved)
    arrays = {name: array.copy() for name, array in arrays.items()}
    del fields["arrays_sha256"]
    change(fields, arrays)
    write_phrases(folder, fields, arrays)
    return PhraseVocabulary.load(folder, BPE)


def other_type(draw, fields, arrays):
    name = draw(st.sampled_from(sorted(arrays)))
    other = draw(st.sampled_from([kind for kind in ("i4", "f8", "u1", "bool", "i8") if arrays[name].dtype != kind]))
    arrays[name] = arrays[name].astype(other)
    return f"{name} must be"


def other_shape(draw, fields, arrays):
    name = draw(st.sampled_from(sorted(arrays)))
    arrays[name] = draw(st.sampled_from([arrays[name][None], arrays[name][..., None]]))
    return f"{name} must be"


def array_gone_or_new(draw, fields, arrays):
    name = draw(st.sampled_from([*sorted(arrays), "stranger"]))
    arrays.pop(name, None) if name in arrays else arrays.update(stranger=np.zeros(1))
    return "must have the arrays is_alive, offsets, sources, tokens"


def offsets_not_rising(draw, fields, arrays):
    offsets = arrays["offsets"]
    position = draw(st.integers(1, len(offsets) - 2))
    offsets[position] = offsets[position - 1] + draw(st.integers(-(2**40), 1))
    return "two tokens or more|must be in"


def offsets_not_of_the_tokens(draw, fields, arrays):
    arrays["offsets"][draw(st.sampled_from([0, -1]))] += draw(st.integers(1, 2**40)) * draw(st.sampled_from([-1, 1]))
    return "two tokens or more|begin with 0 and end with|must be in"


def offsets_of_more_or_fewer_phrases(draw, fields, arrays):
    arrays["is_alive"] = draw(st.sampled_from([arrays["is_alive"][:-1], np.append(arrays["is_alive"], True)]))
    return "one more entry than is_alive"


def token_out_of_range(draw, fields, arrays):
    arrays["tokens"][draw(st.integers(0, len(arrays["tokens"]) - 1))] = draw(st.one_of(BIG, NEGATIVE))
    return r"tokens must be in \[0, 1000\)"


def special_token(draw, fields, arrays):
    position = draw(st.integers(0, len(arrays["tokens"]) - 1))
    arrays["tokens"][position] = draw(st.sampled_from(BPE.all_special_ids))
    return "no special token"


def phrase_twice(draw, fields, arrays):
    offsets, tokens = arrays["offsets"].tolist(), arrays["tokens"].tolist()
    phrases = [tokens[a:b] for a, b in pairwise(offsets)]
    living = [slot for slot in range(len(phrases)) if arrays["is_alive"][slot]]
    one, other = draw(st.lists(st.sampled_from(living), min_size=2, max_size=2, unique=True))
    phrases[one] = phrases[other]
    arrays["tokens"] = np.array(list(chain(*phrases)))
    arrays["offsets"] = np.cumsum([0, *map(len, phrases)])
    return "phrases must be distinct"


def source_of_no_phrase(draw, fields, arrays):
    wrong = st.sampled_from([VOCAB - 1, VOCAB + 1, VOCAB + len(arrays["is_alive"]), -1, 2**62])  # the second is removed
    arrays["sources"][draw(st.integers(0, len(arrays["sources"]) - 1)), 0] = draw(wrong)
    return "a phrase that exists"


def source_of_no_document(draw, fields, arrays):
    position = draw(st.integers(0, len(arrays["sources"]) - 1))
    arrays["sources"][position, 1] = draw(st.one_of(BIG, NEGATIVE, st.just(len(fields["documents"]))))
    return "documents in"


def source_of_no_characters(draw, fields, arrays):
    position = draw(st.integers(0, len(arrays["sources"]) - 1))
    start = int(arrays["sources"][position, 2])
    column, value = draw(st.sampled_from([(2, -1), (2, 2**62), (3, -1), (3, start - 1)]))
    arrays["sources"][position, column] = value
    return "0 <= start <= end"


def sources_twice_or_out_of_order(draw, fields, arrays):
    sources = arrays["sources"]
    arrays["sources"] = draw(st.sampled_from([sources[::-1], np.repeat(sources, 2, axis=0)]))
    return "distinct and sorted by phrase"


def setting_gone(draw, fields, arrays):
    name = draw(st.sampled_from(["vocab_size", "tokenizer", "documents"]))
    del fields[name]
    return f"{name} must be"


def setting_of_another_type(draw, fields, arrays):
    name = draw(st.sampled_from(["vocab_size", "tokenizer", "documents"]))
    own = {"vocab_size": int, "tokenizer": str, "documents": list}[name]
    fields[name] = draw(st.sampled_from([value for value in OTHER_TYPES if type(value) is not own]))
    return f"{name} must be"


def other_version(draw, fields, arrays):
    fields["format_version"] = draw(st.sampled_from([None, "1", 2, 1.5, [1]]))
    return "must have format_version 1"


def small_vocabulary(draw, fields, arrays):
    fields["vocab_size"] = draw(st.integers(-10, len(BPE) - 1))
    return "vocab_size must be at least"


def other_tokenizer(draw, fields, arrays):
    fields["tokenizer"] = draw(st.text())
    return "was made with another"


def documents_not_names(draw, fields, arrays):
    fields["documents"] = draw(st.sampled_from([["one", "two", 3], ["one", "two", "two"], ["one", "two", None]]))
    return "documents must be"


IN_ARRAYS = [
    array_gone_or_new, other_type, other_shape, offsets_not_rising, offsets_not_of_the_tokens, token_out_of_range,
    offsets_of_more_or_fewer_phrases, special_token, phrase_twice, source_of_no_phrase, source_of_no_document,
    source_of_no_characters, sources_twice_or_out_of_order,
]  # fmt: skip
IN_SETTINGS = [
    setting_gone, setting_of_another_type, other_version, small_vocabulary, other_tokenizer, documents_not_names,
]  # fmt: skip


@pytest.mark.parametrize("damage", [*IN_ARRAYS, *IN_SETTINGS], ids=lambda one: one.__name__)
@settings(derandomize=True, deadline=None, max_examples=12)
@given(data=st.data())
def test_a_field_that_breaks_a_rule_is_refused_by_file_and_rule(saved, tmp_path_factory, damage, data):
    told = []
    with pytest.raises(ValueError, match=re.escape(ARRAYS_FILE if damage in IN_ARRAYS else SETTINGS_FILE)) as error:
        loaded_again(saved, tmp_path_factory.mktemp("again"), lambda *files: told.append(damage(data.draw, *files)))
    assert re.search(told[0], str(error.value)), error.value


def test_unchanged_content_loads(saved, tmp_path):
    assert len(loaded_again(saved, tmp_path, lambda *_: None)) == len(PhraseVocabulary.load(saved, BPE))


def test_arrays_cut_short_before_their_checksum_was_made_are_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_targets.phrases.vocabulary.files.save", lambda arrays: b"not safetensors")
    with pytest.raises(ValueError, match=f"{ARRAYS_FILE} is not a valid safetensors file"):
        loaded_again(saved, tmp_path, lambda *_: None)


@pytest.mark.parametrize("source", [("name", -1, 3), ("name", 4, 3), ("name", 1.5, 3), (7, 1, 3), ("name", 1)])
def test_a_source_that_could_not_be_loaded_again_is_not_added(source):
    vocabulary = PhraseVocabulary(BPE)
    with pytest.raises(ValueError, match=r"a source must be a document's name and its characters"):
        vocabulary.add(["the cat"], sources=[[source]])
    assert not len(vocabulary)
