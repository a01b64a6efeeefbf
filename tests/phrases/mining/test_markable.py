import re

import numpy as np
import pytest

from hf_targets.phrases.mining.miner import MarkablePhrases
from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from tests.small_tokenizers import BPE


def left(text: str, size: int = 40) -> set[str]:
    tokenized = TokenizedText.from_text(text, BPE)
    spans = MarkablePhrases(TokenNgrams(2, size)).spans(tokenized)
    return {text[tokenized.offsets[start, 0] : tokenized.offsets[end - 1, 1]] for start, end in spans}


ENDS = [". A dog", ".\n dog", "! A dog", '." A dog', "?) (dog", "\u3002dog", "."]


@pytest.mark.parametrize("end", ENDS)
def test_no_phrase_has_the_end_of_a_sentence(end):
    found = left(f"the cat{end}")
    assert "the cat" in found
    assert not any(end[0] in phrase for phrase in found)


@pytest.mark.parametrize("text", ["e.g. cats", "3.14 mats", "the U.S.a", "a: b; c", "no.1"])
def test_a_stop_that_ends_no_sentence_parts_nothing(text):
    tokenized = TokenizedText.from_text(text, BPE)
    ends = tokenized.offsets[:, 1]
    every = TokenNgrams(2, 40).spans(tokenized).tolist()
    whole = [span for span in every if not re.match(r"\w\w", text[ends[span[1] - 1] - 1 :])]
    assert MarkablePhrases(TokenNgrams(2, 40)).spans(tokenized).tolist() == whole


def test_no_phrase_ends_inside_a_word():
    words = {"the", "catapult", "mat", "2019s"}
    found = left("the catapult mat 2019s")
    assert {"the catapult", "the catapult mat", "apult mat"} & found
    assert all(phrase.split()[-1] in words or any(word.endswith(phrase) for word in words) for phrase in found)
    assert len(found) < len(TokenNgrams(2, 40).spans(TokenizedText.from_text("the catapult mat 2019s", BPE)))


def test_no_phrase_has_a_part_of_a_character():
    text = "東 a 京"
    assert all(phrase.strip() for phrase in left(text))
    tokenized = TokenizedText.from_text("🙂🙂", BPE)
    spans = MarkablePhrases(TokenNgrams(2, 8)).spans(tokenized)
    assert len(tokenized) == 8 and spans.tolist() == [[0, 4], [0, 8], [4, 8]]


def test_a_miner_that_finds_nothing_leaves_nothing():
    class Nothing:
        def spans(self, text):
            return np.zeros((0, 2), np.int64)

    assert MarkablePhrases(Nothing()).spans(TokenizedText.from_text("a b", BPE)).shape == (0, 2)
    assert MarkablePhrases(TokenNgrams()).spans(TokenizedText.from_text("", BPE)).shape == (0, 2)
