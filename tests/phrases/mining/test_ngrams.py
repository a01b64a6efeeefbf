import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nltk.tokenize import NLTKWordTokenizer

from hf_targets.phrases.mining.closed_classes import FUNCTION_WORDS
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.small_tokenizers import BPE, LEGACY, METASPACE, WORDS

NLTK = NLTKWordTokenizer()
WRITTEN = ["the cat", " ", "  ", "\n", '"', "''", "``", "'", "don't", "can't", "cannot", ".", ",", "(", "é", "😀"]
TEXTS = st.lists(st.sampled_from(WRITTEN), max_size=14).map("".join)


def by_character(text):
    """A text in which each character is a token."""
    return TokenizedText(text, [ord(character) for character in text], by_place(range(len(text) + 1)))


def by_place(edges):
    return np.stack([np.array(edges[:-1], int), np.array(edges[1:], int)], axis=1)


def cut(text, miner):
    return [text.text[text.offsets[start, 0] : text.offsets[end - 1, 1]] for start, end in miner.spans(text)]


@given(
    ids=st.lists(st.integers(0, 4), max_size=12), sizes=st.lists(st.integers(2, 6), min_size=2, max_size=2).map(sorted)
)
def test_token_ngrams_are_all_windows_without_a_special_token(ids, sizes):
    text = TokenizedText("", ids, np.zeros((len(ids), 2), int), frozenset([0]))
    expected = [
        [start, end]
        for start in range(len(ids))
        for end in range(start + 1, len(ids) + 1)
        if sizes[0] <= end - start <= sizes[1] and 0 not in ids[start:end]
    ]
    assert TokenNgrams(*sizes).spans(text).tolist() == expected


@given(text=TEXTS)
def test_words_are_those_of_the_word_tokenizer_wherever_it_can_place_them(text):
    expected, start = [], 0
    for line in text.splitlines(keepends=True):
        try:
            expected += [[start + first, start + end] for first, end in NLTK.span_tokenize(line) if end - first >= 2]
        except ValueError:
            assume(False)
        start += len(line)
    assert WordNgrams(1, 1).spans(by_character(text)).tolist() == expected


@given(text=TEXTS)
def test_word_ngrams_are_sorted_distinct_within_a_line_and_end_with_words(text):
    tokenized = TokenizedText.from_text(text, BPE)
    spans = WordNgrams().spans(tokenized).tolist()
    assert spans == sorted(spans)
    assert len({tuple(span) for span in spans}) == len(spans)
    for (start, end), phrase in zip(spans, cut(tokenized, WordNgrams()), strict=True):
        assert end - start >= 2
        assert len(phrase.splitlines()) == 1
        assert phrase.strip()
        assert not phrase[-1].isspace()
        assert len(list(NLTK.tokenize(phrase))) >= 2 or "'" in phrase or "cannot" in text
        own = {index for token in range(start, end) for index in range(*tokenized.offsets[token])}
        others = [token for token in range(len(tokenized)) if not start <= token < end]
        assert own.isdisjoint(index for token in others for index in range(*tokenized.offsets[token]))


@given(lengths=st.lists(st.integers(0, 8), max_size=4), least=st.integers(2, 4), more=st.integers(0, 3))
def test_every_window_of_words_in_a_line_is_given(lengths, least, more):
    text = TokenizedText.from_text("".join(" ".join(["cat"] * length) + "\n" for length in lengths), WORDS)
    num_windows = sum(max(0, length - size + 1) for length in lengths for size in range(least, least + more + 1))
    assert len(WordNgrams(least, least + more).spans(text)) == num_windows


@pytest.mark.parametrize("line", ["`` a \" b '' c", "\"`a\" ''b'' ``c``", "'\"' a ''' b"])
def test_lines_whose_quotes_the_word_tokenizer_mixes_up_have_words_all_the_same(line):
    text = by_character(line)
    words = "".join(cut(text, WordNgrams(1, 9)))
    assert set(line) - set(words) <= {" "}
    assert len(WordNgrams(2, 2).spans(text)) > 0


def test_phrases_are_of_whole_words_and_no_space_that_is_a_token_begins_or_ends_one():
    assert cut(by_character("a b  c "), WordNgrams(2, 3)) == ["a b", "a b  c", "b  c"]
    assert NLTK.tokenize("I cannot go") == ["I", "can", "not", "go"]
    text = TokenizedText("I cannot go", [0, 1, 2], by_place([0, 1, 8, 11]))
    assert cut(text, WordNgrams(2, 4)) == ["I cannot", "I cannot go", " cannot go"]


LAW = """United States Customs shall apply section 376(b) of "Title 19" (d), and added duties. The Minister of Finance,
Paris, decides  in Little Rock (Arkansas); cats\tsleep in a well-known house. 東 cats"""


@pytest.mark.parametrize("tokenizer", [BPE, METASPACE, LEGACY], ids=["bpe", "metaspace", "legacy"])
def test_trimmed_windows_are_words_of_one_sentence_with_the_space_before_them(tokenizer):
    vocabulary = PhraseVocabulary.from_documents([LAW], tokenizer, WordNgrams(2, 4, trimmed=True))
    texts = {vocabulary.text(phrase) for phrase in vocabulary}
    for text in texts:
        words = text[1:].replace(", ", " ").split(" ")
        assert text[0] == " " and 2 <= len(words) <= 4
        assert all(re.fullmatch(r"\w+(['.-]\w+)*", word) for word in words)
        assert FUNCTION_WORDS.isdisjoint([words[0].lower(), words[-1].lower()])
    kept = {" section 376", " added duties", " Minister of Finance", " Little Rock", " 東 cats"}
    assert kept <= texts
    assert not any(text.startswith((" States", " Rock")) or text.endswith(" Little") for text in texts)


@pytest.mark.parametrize(("miner", "sizes"), [(TokenNgrams, (1, 8)), (WordNgrams, (3, 2))])
def test_sizes_that_leave_no_window_are_refused(miner, sizes):
    assert miner().spans(TokenizedText.from_text("\n", BPE)).shape == (0, 2)
    with pytest.raises(ValueError, match=f"got {sizes[0]} and {sizes[1]}"):
        miner(*sizes)
