from hypothesis import given
from hypothesis import strategies as st

from hf_targets.maths.trie import TokenTrie

ids = st.integers(0, 3)
sequences = st.lists(st.lists(ids, min_size=1, max_size=4).map(tuple), max_size=8)
texts = st.lists(ids, max_size=12).map(tuple)


@given(sequences, texts)
def test_matches_are_all_positions_where_a_sequence_stands(known, text):
    spans = [(start, end) for start in range(len(text)) for end in range(start + 1, len(text) + 1)]
    expected = [(start, end) for start, end in spans if text[start:end] in known]
    assert list(TokenTrie(known).matches(text)) == expected


@given(sequences, texts)
def test_the_longest_is_the_last_match_of_a_position(known, text):
    trie = TokenTrie(known)
    found = dict(trie.matches(text))  # of a start, the last end
    for start in range(len(text)):
        assert trie.longest(text, start) == found.get(start)


def test_ids_of_32_bits_do_not_mix():
    large = 2**32 - 1
    trie = TokenTrie([(large, 0), (0, large)])
    assert list(trie.matches([large, 0, large])) == [(0, 2), (1, 3)]
    assert trie.longest([1, large], 0) is None
