"""Chunks of tags: which phrases they are, and that their edges are those of constituents."""

import pytest

from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.phrases.mining.chunks import ChunkPhrases
from hf_targets.phrases.mining.tokenized_text import TokenizedText

TEXT = "The old cat sat on the red mat."
BPE = train_bpe_tokenizer([TEXT, "It was in the U.S. Navy. We saw Dr. Who"] * 3, vocab_size=340)


def cut(text: TokenizedText, miner: ChunkPhrases) -> list[str]:
    return [text.text[text.offsets[start, 0] : text.offsets[end - 1, 1]].strip() for start, end in miner.spans(text)]


def chunks(text: str, **settings) -> list[str]:
    return cut(TokenizedText.from_text(text, BPE), ChunkPhrases(**settings))


def test_noun_verb_and_prepositional_phrases_are_given_sorted_and_nested():
    assert chunks(TEXT) == ["The old cat", "sat on the red mat", "on the red mat", "the red mat"]
    assert chunks(TEXT, labels=["NP"]) == ["The old cat", "the red mat"]


def test_a_noun_phrase_may_have_prepositional_phrases_and_a_participle_after_its_article():
    assert "the back of the mat" in chunks("the back of the mat")
    assert chunks("We painted the painted mat")[1:] == ["painted the painted mat", "the painted mat"]


@pytest.mark.parametrize("stop", [".", "?", "!", ";", ".\n", "\n"])
def test_no_chunk_goes_on_after_a_stop_or_a_line_end(stop):
    assert chunks(f"We saw the cat{stop} The mat") == ["We", "saw the cat", "the cat", "The mat"]


def test_an_abbreviation_is_no_stop():
    found = chunks("It was in the U.S. Navy. We saw Dr. Who")
    assert {"the U.S. Navy", "in the U.S. Navy"} <= set(found)
    assert not any("Navy." in phrase for phrase in found)


def test_tags_and_rules_may_be_ones_own():
    def tag(words):
        return [(word, "A" if word[0] == "o" else "B") for word in words]

    assert chunks(TEXT, tag=tag, grammar="NP: {<A><B>}") == ["old cat", "on the"]
    assert chunks(TEXT, tag=tag, grammar="XP: {<A><B>}", labels=["XP"]) == ["old cat", "on the"]
