from types import SimpleNamespace

import numpy as np
import pytest

from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.phrases.mining.constituency import ConstituencyPhrases
from hf_targets.phrases.mining.tokenized_text import TokenizedText

TEXT = "The old cat sat on the mat."
TREE = ("S", ("NP", "The", "old", "cat"), ("VP", "sat", ("PP", "on", ("NP", "the", "mat"))), ".")
WORDS = ["The", "old", "cat", "sat", "on", "the", "mat", "."]
BPE = train_bpe_tokenizer([TEXT] * 3, vocab_size=280)


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


def parses(text=TEXT, constituents=("ROOT", TREE), words=WORDS):
    def pipeline(given):
        assert given == text
        return SimpleNamespace(sentences=[sentence(text, constituents, words)])

    return pipeline


def cut(text, miner):
    return [text.text[text.offsets[start, 0] : text.offsets[end - 1, 1]] for start, end in miner.spans(text)]


def test_noun_verb_and_prepositional_phrases_are_given_sorted_and_nested():
    text = TokenizedText.from_text(TEXT, BPE)
    phrases = cut(text, ConstituencyPhrases(parses()))
    assert phrases == ["The old cat", " sat on the mat", " on the mat", " the mat"]
    assert cut(text, ConstituencyPhrases(parses(), labels=["NP"])) == ["The old cat", " the mat"]
    assert cut(text, ConstituencyPhrases(parses(), labels=["S", "ROOT"])) == [TEXT]


def test_only_phrases_of_2_to_max_tokens_are_given():
    text = TokenizedText(TEXT, list(range(5)), np.array([[0, 11], [11, 15], [15, 18], [18, 26], [26, 27]]))
    assert cut(text, ConstituencyPhrases(parses())) == [" sat on the mat", " on the mat"]
    assert cut(text, ConstituencyPhrases(parses(), max_tokens=2)) == [" on the mat"]


def test_a_constituent_that_shares_a_token_with_its_neighbour_is_not_cut():
    text = TokenizedText(TEXT, list(range(4)), np.array([[0, 3], [3, 15], [15, 22], [22, 27]]))
    assert cut(text, ConstituencyPhrases(parses())) == []


def test_words_written_as_one_are_parted_at_neither_side():
    text = TokenizedText("He cannot go", list(range(4)), np.array([[0, 2], [2, 6], [6, 9], [9, 12]]))
    constituents = ("S", ("NP", "He"), ("VP", "can", ("PP", "not", "go")))
    pipeline = parses(text.text, constituents, ["He", "can|not", "go"])
    assert cut(text, ConstituencyPhrases(pipeline)) == [" cannot go"]
    assert cut(text, ConstituencyPhrases(pipeline, labels=["PP"])) == [], "nobody knows where 'not' starts"


def test_no_constituent_crosses_a_line_end_or_holds_a_special_token():
    broken = TEXT.replace("on the", "on\nthe")
    text = TokenizedText.from_text(broken, BPE)
    assert cut(text, ConstituencyPhrases(parses(broken))) == ["The old cat", "the mat"]
    ids = TokenizedText.from_text(TEXT, BPE).ids
    special = TokenizedText(TEXT, ids, TokenizedText.from_text(TEXT, BPE).offsets, frozenset([ids[-2]]))
    assert cut(special, ConstituencyPhrases(parses())) == ["The old cat"]


def test_a_text_without_sentences_has_no_phrases():
    miner = ConstituencyPhrases(lambda text: SimpleNamespace(sentences=[]))
    assert miner.spans(TokenizedText.from_text("", BPE)).shape == (0, 2)


def test_a_pipeline_that_does_not_parse_is_refused():
    miner = ConstituencyPhrases(lambda text: SimpleNamespace(sentences=[SimpleNamespace(tokens=[])]))
    with pytest.raises(ValueError, match="does not parse; make it with stanza"):
        miner.spans(TokenizedText.from_text(TEXT, BPE))


def test_a_folder_without_models_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} has no models"):
        ConstituencyPhrases(tmp_path)
