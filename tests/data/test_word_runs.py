"""Words are compared with all marks of their letters, however those are written."""

import pytest

from hf_targets.data.words import word_runs
from hf_targets.retrieval.documents import DocumentRetriever


@pytest.mark.parametrize(("one", "other"), [("कि", "कु"), ("हिन्दी", "हुनादु"), ("هُوَ", "هَوُ"), ("cafe\u0301", "cafe")])
def test_words_that_differ_in_marks_alone_are_different(one, other):
    assert word_runs(one) != word_runs(other)


def test_a_word_is_found_in_composed_and_in_decomposed_form():
    shelf = DocumentRetriever.lexical({"tea": "thé vert", "coffee": "cafe\u0301 noir"})
    assert [name for name, _ in shelf.retrieve(["CAFÉ"], k=1)[0]] == ["coffee"]
    assert word_runs("CAFÉ, thé") == word_runs("cafe\u0301 the\u0301") == ["café", "thé"]
