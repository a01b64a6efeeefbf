"""A passage is a part of its document, and its id says which."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.retrieval.passages import Passage, passages_of, source_in_document

NAMES = st.one_of(st.text(max_size=8), st.sampled_from(["a#char=1,2", "#char=", "x\n#char=0,5", "größe/2-3 🙂"]))
TEXTS = st.text("ab. \n\t\u00a0é", min_size=1, max_size=40).filter(str.strip)
lawful = settings(max_examples=40, deadline=None, derandomize=True)


@lawful
@given(documents=st.dictionaries(NAMES, TEXTS, min_size=1, max_size=4), num_words=st.integers(1, 5), data=st.data())
def test_passages_are_parts_of_their_documents_in_whole_words(documents, num_words, data):
    overlap = data.draw(st.integers(0, num_words - 1))
    passages = passages_of(documents, num_words, overlap)
    parsed = [Passage.parse(name) for name in passages]
    assert [passage.id for passage in parsed] == list(passages)
    for passage, text in zip(parsed, passages.values(), strict=True):
        assert documents[passage.document][passage.start : passage.end] == text
    for name, text in documents.items():
        parts = [passages[passage.id].split() for passage in parsed if passage.document == name]
        assert all(len(words) == num_words for words in parts[:-1])
        assert (overlap if len(parts) > 1 else 0) < len(parts[-1]) <= num_words
        for before, after in pairwise(parts):
            assert before[len(before) - overlap :] == after[:overlap]
        assert [*parts[0], *(word for words in parts[1:] for word in words[overlap:])] == text.split()
        if overlap == 0:
            assert "".join(passages[passage.id] for passage in parsed if passage.document == name) == text


@lawful
@given(documents=st.dictionaries(NAMES, TEXTS, min_size=1, max_size=3), data=st.data())
def test_characters_of_a_passage_are_found_in_its_document(documents, data):
    for name, passage in passages_of(documents, 3, 1).items():
        start = data.draw(st.integers(0, len(passage)))
        end = data.draw(st.integers(start, len(passage)))
        document, first, stop = source_in_document(name, start, end)
        assert documents[document][first:stop] == passage[start:end]


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (lambda: passages_of({"a": "text"}, 0), "num_words"),
        (lambda: passages_of({"a": "text"}, 3, 3), "overlap"),
        (lambda: passages_of({"a": " "}), "'a'"),
        (lambda: Passage.parse("law"), "'law'"),
        (lambda: source_in_document("law#char=3,9", 2, 7), r"\[2, 7"),
        (lambda: source_in_document("law#char=3,9", -1, 2), r"\[-1, 2\)"),
    ],
)
def test_bad_arguments_are_refused(act, word):
    with pytest.raises(ValueError, match=word):
        act()
