import logging

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.data.pair_encoding import REASONS, filter_pairs
from tests.small_tokenizers import BPE

WORDS = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=6).map("  ".join)


def pairs_of(*pairs):
    return Dataset.from_dict({"source": [pair[0] for pair in pairs], "target": [pair[1] for pair in pairs]})


def rows(pairs):
    return list(zip(pairs["source"], pairs["target"], strict=True))


@settings(max_examples=100, deadline=None)
@given(
    pairs=st.lists(st.tuples(WORDS, WORDS), max_size=8),
    shortest=st.integers(1, 3),
    longest=st.none() | st.integers(3, 5),
    ratio=st.none() | st.sampled_from([1, 1.5, 2]),
)
def test_the_kept_pairs_are_those_within_the_bounds_in_their_order(pairs, shortest, longest, ratio):
    pairs.append(("a b c", "a b c"))
    kept, counts = filter_pairs(pairs_of(*pairs), shortest, longest, ratio)

    def fits(pair):
        low, high = sorted(len(side.split()) for side in pair)
        return shortest <= low and high <= (longest or 99) and high <= (ratio or 99) * low

    assert rows(kept) == [pair for pair in pairs if fits(pair)]
    assert list(counts) == ["kept", *REASONS]
    assert counts["kept"] == len(kept) and sum(counts.values()) == len(pairs)


def test_each_pair_is_counted_under_its_first_reason_in_one_log_line(caplog):
    pairs = pairs_of(("", "a"), ("a", " "), ("a", "a a a a a"), ("a a", "a a a a"), ("a a", "a a a"))
    with caplog.at_level(logging.INFO):
        kept, counts = filter_pairs(pairs, 2, 4, 1.5)
    assert rows(kept) == [("a a", "a a a")]
    assert counts == {"kept": 1, "empty": 2, "too short": 1, "too long": 0, "ratio": 1}
    assert caplog.messages == [
        "1 of 5 pairs are kept for training; left out: 2 empty, 1 too short, 0 too long, 1 ratio"
    ]
    assert filter_pairs(pairs, 1, 4, None)[1]["too long"] == 1


def test_lengths_are_those_of_a_tokenizers_tokens_if_one_is_given():
    pairs = pairs_of(("the", "the"), ("zzzzzz", "the"))
    assert rows(filter_pairs(pairs)[0]) == rows(pairs)
    assert rows(filter_pairs(pairs, tokenizer=BPE)[0]) == [("the", "the")]
    assert len(BPE("zzzzzz")["input_ids"]) > 1.5 * len(BPE("the")["input_ids"])


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"min_length": 0}, "got 0 and 175"),
        ({"min_length": 4, "max_length": 3}, "got 4 and 3"),
        ({"max_ratio": 0.5}, "at least 1, .* got 0.5"),
        ({"min_length": 2}, r"none is \(0 empty, 1 too short, 0 too long, 0 ratio\); widen"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(bounds, says):
    with pytest.raises(ValueError, match=says):
        filter_pairs(pairs_of(("a", "b")), **bounds)


def test_all_splits_at_once_and_other_columns_are_refused():
    with pytest.raises(ValueError, match="got DatasetDict; give one split"):
        filter_pairs(DatasetDict(train=pairs_of(("a", "b"))))
    with pytest.raises(ValueError, match=r"\['target'\] is not among \['source', 'en'\]"):
        filter_pairs(Dataset.from_dict({"source": ["a"], "en": ["b"]}))
