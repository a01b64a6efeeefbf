import re

import numpy as np
import pytest

from hf_targets.phrases.batches.collator import PhraseCollator
from hf_targets.phrases.mining import MINERS
from hf_targets.phrases.mining.miner import _STOP, MarkablePhrases, MiningTask, sentence_ends
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from tests.small_tokenizers import BPE
from tests.tiny_models import VOCAB
from tests.tiny_models import WORDS as NUMBERED


class Pairs:
    """As one would add it from another package: every second token begins a phrase of two."""

    def spans(self, text):
        starts = np.arange(0, len(text) - 1, 2)
        return np.stack([starts, starts + 2], axis=1)

    @classmethod
    def for_task(cls, task):
        return cls()


@pytest.fixture
def registered():
    MINERS.register("pairs", Pairs)
    yield
    del MINERS._classes["pairs"]


@pytest.mark.usefixtures("registered")
def test_a_miner_from_outside_gives_a_training_its_phrases():
    miner = MINERS["pairs"].for_task(MiningTask(read_nothing))
    collator = PhraseCollator(NUMBERED, miner, vocab_size=VOCAB, min_gap=0, phrase_rate=1.0, negatives=[])
    batch = collator([{"input_ids": list(range(1, 9))}])
    assert isinstance(collator.miner, Pairs)
    assert (batch["phrase_targets"] >= VOCAB).sum() >= 2


def read_nothing():
    raise AssertionError("texts are read only by what needs them")


def test_windows_need_no_texts_and_a_table_is_mined_from_them_with_the_settings():
    task = MiningTask(lambda: [[1, 2, 3, 1, 2], [4, 1, 2]], max_tokens=2, min_count=3, excluded_ids=[4])
    for name, cls in (("words", WordNgrams), ("tokens", TokenNgrams)):
        assert isinstance(MINERS[name].for_task(MiningTask(read_nothing)), cls)
    assert MINERS["fmm"].for_task(task).phrases == [(1, 2)]


def left(text: str, size: int = 40) -> set[str]:
    tokenized = TokenizedText.from_text(text, BPE)
    spans = MarkablePhrases(TokenNgrams(2, size)).spans(tokenized)
    return {text[tokenized.offsets[start, 0] : tokenized.offsets[end - 1, 1]] for start, end in spans}


@pytest.mark.parametrize("end", [".\n dog", '." A dog', "?) (dog", "\u3002dog", "."])
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


def test_no_phrase_has_a_part_of_a_citation_of_its_document():
    found = left("cats sleep [2] all [a] day [13")
    assert {"cats sleep", " all [a] day"} <= found
    assert not any(letter in phrase for phrase in found for letter in "0123456789") and not found & {"cats sleep ["}


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


@pytest.mark.parametrize("part", ["!", ".", ".)", ". ", ".\t", '."', "?\n"])
def test_no_search_for_an_end_of_a_sentence_fails_once_begun_and_so_none_reads_a_character_twice(part):
    text = part * 20 + "a"
    assert all(_STOP.match(text, place) for place, letter in enumerate(text) if letter in ".!?")
    assert len(sentence_ends(part * 100_000 + "a")) in (0, 99_999, 100_000)
