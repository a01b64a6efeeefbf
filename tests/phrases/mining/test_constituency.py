"""Chunks of tags and constituents of parses: which phrases they are, and that their edges are those of constituents."""

from types import SimpleNamespace

import numpy as np
import pytest

from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.phrases.mining.chunks import ChunkPhrases
from hf_targets.phrases.mining.constituency import ConstituencyPhrases
from hf_targets.phrases.mining.tokenized_text import TokenizedText

SENTENCE = "The old cat sat on the mat."
TREE = ("S", ("NP", "The", "old", "cat"), ("VP", "sat", ("PP", "on", ("NP", "the", "mat"))), ".")
WORDS = ["The", "old", "cat", "sat", "on", "the", "mat", "."]
BYTES = train_bpe_tokenizer([SENTENCE] * 3, vocab_size=280)


def tree(node):
    if isinstance(node, str):
        return SimpleNamespace(label="X", children=(SimpleNamespace(label=node, children=()),))
    return SimpleNamespace(label=node[0], children=tuple(map(tree, node[1:])))


def sentence(text, constituents, words):
    """A parsed sentence as stanza gives it; words of one token that have a hyphen between them are written as one."""
    tokens, end = [], 0
    for written in words:
        parts = written.split("|")
        start = text.index("".join(parts), end)
        end = start + len("".join(parts))
        one = len(parts) == 1
        inner = [SimpleNamespace(start_char=start if one else None, end_char=end if one else None) for _ in parts]
        tokens.append(SimpleNamespace(start_char=start, end_char=end, words=inner))
    return SimpleNamespace(tokens=tokens, constituency=tree(constituents))


def parses(text=SENTENCE, constituents=("ROOT", TREE), words=WORDS):
    def pipeline(given):
        assert given == text
        return SimpleNamespace(sentences=[sentence(text, constituents, words)])

    return pipeline


def cut(text, miner):
    return [text.text[text.offsets[start, 0] : text.offsets[end - 1, 1]] for start, end in miner.spans(text)]


def test_constituents_are_given_sorted_and_nested():
    text = TokenizedText.from_text(SENTENCE, BYTES)
    phrases = cut(text, ConstituencyPhrases(parses()))
    assert phrases == ["The old cat", " sat on the mat", " on the mat", " the mat"]
    assert cut(text, ConstituencyPhrases(parses(), labels=["NP"])) == ["The old cat", " the mat"]
    assert cut(text, ConstituencyPhrases(parses(), labels=["S", "ROOT"])) == [SENTENCE]


def test_words_written_as_one_are_parted_at_neither_side():
    text = TokenizedText("He cannot go", list(range(4)), np.array([[0, 2], [2, 6], [6, 9], [9, 12]]))
    constituents = ("S", ("NP", "He"), ("VP", "can", ("PP", "not", "go")))
    pipeline = parses(text.text, constituents, ["He", "can|not", "go"])
    assert cut(text, ConstituencyPhrases(pipeline)) == [" cannot go"]
    assert cut(text, ConstituencyPhrases(pipeline, labels=["PP"])) == [], "nobody knows where 'not' starts"


def test_no_constituent_crosses_a_line_end_or_holds_a_special_token():
    broken = SENTENCE.replace("on the", "on\nthe")
    text = TokenizedText.from_text(broken, BYTES)
    assert cut(text, ConstituencyPhrases(parses(broken))) == ["The old cat", "the mat"]
    ids = TokenizedText.from_text(SENTENCE, BYTES).ids
    special = TokenizedText(SENTENCE, ids, TokenizedText.from_text(SENTENCE, BYTES).offsets, frozenset([ids[-2]]))
    assert cut(special, ConstituencyPhrases(parses())) == ["The old cat"]


def test_only_phrases_of_2_to_max_tokens_with_tokens_of_their_own_are_given():
    text = TokenizedText(SENTENCE, list(range(5)), np.array([[0, 11], [11, 15], [15, 18], [18, 26], [26, 27]]))
    assert cut(text, ConstituencyPhrases(parses())) == [" sat on the mat", " on the mat"]
    assert cut(text, ConstituencyPhrases(parses(), max_tokens=2)) == [" on the mat"]
    shared = TokenizedText(SENTENCE, list(range(4)), np.array([[0, 3], [3, 15], [15, 22], [22, 27]]))
    assert cut(shared, ConstituencyPhrases(parses())) == []


def test_a_pipeline_that_does_not_parse_is_refused():
    miner = ConstituencyPhrases(lambda text: SimpleNamespace(sentences=[SimpleNamespace(tokens=[])]))
    with pytest.raises(ValueError, match="does not parse"):
        miner.spans(TokenizedText.from_text(SENTENCE, BYTES))


TEXT = "The old cat sat on the red mat."
BPE = train_bpe_tokenizer([TEXT, "It was in the U.S. Navy. We saw Dr. Who"] * 3, vocab_size=340)


def chunks(text: str, **settings) -> list[str]:
    return [phrase.strip() for phrase in cut(TokenizedText.from_text(text, BPE), ChunkPhrases(**settings))]


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


def test_tags_may_be_ones_own():
    def tag(words):
        return [(word, {"old": "JJ", "cat": "NN"}.get(word, ".")) for word in words]

    assert chunks(TEXT, tag=tag) == ["old cat"]
