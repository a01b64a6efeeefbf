from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hf_targets.phrases.mining.forward_maximum_matching import ForwardMaximumMatching, joined_tokens
from hf_targets.phrases.mining.run_counts import TokenRuns
from hf_targets.phrases.mining.tokenized_text import TokenizedText

IDS = st.lists(st.integers(0, 3), max_size=30)
PHRASES = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=5).map(tuple), min_size=1, max_size=8)


def of_ids(ids, special_ids=()):
    return TokenizedText("", list(ids), np.zeros((len(ids), 2), int), frozenset(special_ids))


def naive_matches(ids, phrases):
    spans, start = [], 0
    while start < len(ids):
        lengths = [len(phrase) for phrase in phrases if tuple(ids[start : start + len(phrase)]) == phrase]
        if lengths:
            spans.append([start, start + max(lengths)])
        start += max(lengths, default=1)
    return spans


def naive_counts(corpus, max_tokens):
    return Counter(
        tuple(ids[start : start + size])
        for ids in corpus
        for size in range(2, max_tokens + 1)
        for start in range(len(ids) - size + 1)
    )


@given(ids=IDS, phrases=PHRASES)
@example(ids=[0, 2, 2, 0, 2, 2, 0, 1, 1], phrases=[(2, 1, 0), (2, 0), (2, 2, 0, 1, 0)])  # begins inside a failed one
def test_matches_are_the_longest_from_left_to_right(ids, phrases):
    assert ForwardMaximumMatching(phrases).spans(of_ids(ids)).tolist() == naive_matches(ids, phrases)


@given(corpus=st.lists(IDS, min_size=1, max_size=4), min_count=st.integers(1, 4), max_tokens=st.integers(2, 6))
def test_the_mined_table_has_exactly_the_frequent_runs(corpus, min_count, max_tokens):
    counts = naive_counts(corpus, max_tokens)
    frequent = {phrase: count for phrase, count in counts.items() if count >= min_count}
    if not frequent:
        with pytest.raises(ValueError, match=f"{min_count} times.*lower min_count"):
            ForwardMaximumMatching.mine(corpus, min_count=min_count, max_tokens=max_tokens)
        return
    table = ForwardMaximumMatching.mine(corpus, min_count=min_count, max_tokens=max_tokens)
    assert table.phrases == sorted(
        frequent, key=lambda phrase: (-counts[phrase] * (len(phrase) - 1), len(phrase), phrase)
    )


@given(st.lists(IDS, min_size=1, max_size=4), st.integers(1, 4), st.integers(2, 6))
def test_a_table_counted_in_shards_is_that_of_the_whole_corpus(corpus, min_count, max_tokens):
    width = max(map(max, filter(None, corpus)), default=0) + 1
    shards = [TokenRuns(joined_tokens(part), width) for part in (corpus[::2], corpus[1::2])]

    def count(table):
        for shard in shards if table is not None else ():
            shard.extend(table)
        return [shard.counts() for shard in shards]

    def phrases(make):
        try:
            return make().phrases
        except ValueError:  # none is that frequent
            return []

    counted = {"min_count": min_count, "max_tokens": max_tokens}
    whole = phrases(lambda: ForwardMaximumMatching.mine(corpus, **counted))
    assert phrases(lambda: ForwardMaximumMatching.from_counts(count, **counted, width=width)) == whole


def test_long_runs_of_large_ids_are_counted():
    ids = np.random.default_rng(0).integers(0, 250_000, 40).tolist()
    table = ForwardMaximumMatching.mine([ids, ids], min_count=2, max_tokens=50)
    assert len(table) == 40 * 39 // 2
    assert table.spans(of_ids(ids)).tolist() == [[0, 40]]


def test_no_phrase_crosses_texts_or_holds_a_special_or_an_excluded_token():
    texts = [of_ids([1, 2, 9, 3, 4], special_ids=[9]), of_ids([5, 6])] * 2
    assert ForwardMaximumMatching.mine(texts, min_count=2).phrases == [(1, 2), (3, 4), (5, 6)]
    assert ForwardMaximumMatching.mine(texts, min_count=2, excluded_ids=[1, 6]).phrases == [(3, 4)]
    matching = ForwardMaximumMatching([(1, 9), (2, 3), (2, 3, 9)])
    assert matching.spans(of_ids([1, 9, 2, 3, 9], special_ids=[9])).tolist() == [[2, 4]]


def test_phrases_are_of_two_tokens_and_frequent_ones_must_be_there():
    matching = ForwardMaximumMatching([(1, 2), [1, 2], np.array([1, 2])])
    assert matching.phrases == [(1, 2)]
    assert matching.spans(of_ids([7, 2, 2, 1])).shape == matching.spans(of_ids([])).shape == (0, 2)
    with pytest.raises(ValueError, match="2 token ids"):
        ForwardMaximumMatching([(1, 2), (3,)])
    with pytest.raises(ValueError, match="lower min_count"):
        ForwardMaximumMatching.mine([])
