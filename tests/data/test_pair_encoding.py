import logging

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import NllbTokenizer

from hf_targets.data.pair_encoding import (
    REASONS,
    encode_pairs,
    encode_sources,
    filter_pairs,
    pair_lengths,
)
from hf_targets.data.tokenization import train_joint_bpe
from tests.small_tokenizers import BPE

PAIRS = Dataset.from_dict(
    {"source": ["ein Hund .", "die Katze sieht den Hund .", ""], "target": ["a dog .", "the cat sees the dog .", "x"]}
)
TOKENIZER = train_joint_bpe(PAIRS, 262)


def test_inputs_and_labels_decode_to_source_and_target_and_end_with_the_end_token():
    encoded = encode_pairs(PAIRS, TOKENIZER)
    assert encoded.column_names == ["input_ids", "attention_mask", "labels"]
    for row, pair in zip(encoded, PAIRS, strict=True):
        for column, side in (("input_ids", "source"), ("labels", "target")):
            assert TOKENIZER.decode(row[column], skip_special_tokens=True) == pair[side]
            assert row[column][-1] == TOKENIZER.eos_token_id
        assert row["attention_mask"] == [1] * len(row["input_ids"])


def test_sides_are_as_long_as_their_tokens_however_they_are_padded():
    encoded = encode_pairs(PAIRS, TOKENIZER)
    expected = [[len(row[column]) for row in encoded] for column in ("input_ids", "labels")]
    width = 3 + max(map(max, expected))

    def padded(row):
        source, target = width - len(row["input_ids"]), width - len(row["labels"])
        return {
            "input_ids": [0] * source + row["input_ids"],
            "attention_mask": [0] * source + row["attention_mask"],
            "labels": row["labels"] + [-100] * target,
        }

    assert pair_lengths(encoded).tolist() == list(map(max, *expected))
    assert pair_lengths(encoded.map(padded)).tolist() == [width] * 3


def test_what_is_no_text_is_told_with_its_row_and_is_left_out_by_the_filter():
    pairs = Dataset.from_dict({"source": ["a b", None, "c d"], "target": ["b a", "x y", None]})
    with pytest.raises(ValueError, match="row 1 has None"):
        encode_sources(pairs, TOKENIZER)
    kept, counts = filter_pairs(pairs)
    assert kept["source"][:] == ["a b"] and counts["empty"] == 2
    untranslated = Dataset.from_dict({"source": ["a"], "target": [None]})
    assert len(encode_sources(untranslated, TOKENIZER)) == 1


def test_a_prefix_stands_before_each_source_and_no_target():
    plain, prefixed = (encode_pairs(PAIRS, TOKENIZER, source_prefix=prefix) for prefix in (None, "to English: "))
    assert TOKENIZER.decode(prefixed[0]["input_ids"], skip_special_tokens=True) == "to English: ein Hund ."
    assert prefixed["labels"][:] == plain["labels"][:]


@pytest.mark.parametrize("side", ["source", "target"])
def test_longer_texts_are_an_error_or_cut_and_counted_if_asked(side, caplog):
    column = {"source": "input_ids", "target": "labels"}[side]
    whole = encode_pairs(PAIRS, TOKENIZER)
    longest, limit = max(map(len, whole[column])), len(whole[0][column])
    with pytest.raises(ValueError, match=f"at most {limit} tokens"):
        encode_pairs(PAIRS, TOKENIZER, **{f"max_{side}_length": limit})
    with caplog.at_level(logging.INFO):
        cut = encode_pairs(PAIRS, TOKENIZER, **{f"max_{side}_length": limit}, truncate=True)
    assert caplog.messages == [f"1 of 3 {side}s are cut to {limit} tokens"]
    assert cut[1][column] == [*whole[1][column][: limit - 1], TOKENIZER.eos_token_id]
    assert cut.select([0, 2])[:] == whole.select([0, 2])[:]
    assert encode_pairs(PAIRS, TOKENIZER, **{f"max_{side}_length": longest})[:] == whole[:]


def test_a_tokenizer_that_knows_its_longest_input_sets_the_limit():
    short = train_joint_bpe(PAIRS, 262, model_max_length=8)
    with pytest.raises(ValueError, match="a source must have at most 8 tokens, and 2 of 3"):
        encode_pairs(PAIRS, short)
    assert len(encode_pairs(PAIRS, short, max_source_length=99, max_target_length=99)) == 3


def test_a_tokenizer_with_a_mark_for_each_language_marks_source_and_target():
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "x", "deu_Latn", "eng_Latn", "<mask>"]
    vocab = {piece: id_ for id_, piece in enumerate(pieces)}
    languages = {"src_lang": "deu_Latn", "tgt_lang": "eng_Latn"}
    tokenizer = NllbTokenizer(vocab=vocab, additional_special_tokens=["deu_Latn", "eng_Latn"], **languages)
    encoded = encode_pairs(Dataset.from_dict({"source": ["a", "a"], "target": ["x", "x a"]}), tokenizer)
    of_source, of_target = (tokenizer.convert_tokens_to_ids(languages[side]) for side in ("src_lang", "tgt_lang"))
    for row in encoded:
        assert of_source in row["input_ids"] and of_target not in row["input_ids"]
        assert of_target in row["labels"] and of_source not in row["labels"]


def test_targets_without_an_end_and_no_pairs_are_refused():
    with pytest.raises(ValueError, match=r"does not add its '<\|endoftext\|>'"):
        encode_pairs(PAIRS, BPE)
    with pytest.raises(ValueError, match="must have a row"):
        encode_pairs(PAIRS.select([]), TOKENIZER)


WORDS = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=6).map("  ".join)


def pairs_of(*pairs):
    return Dataset.from_dict({"source": [pair[0] for pair in pairs], "target": [pair[1] for pair in pairs]})


def rows(pairs):
    return list(zip(pairs["source"], pairs["target"], strict=True))


@given(
    pairs=st.lists(st.tuples(WORDS, WORDS), max_size=8),
    longest=st.none() | st.integers(3, 5),
    ratio=st.none() | st.sampled_from([1, 1.5, 2]),
)
def test_the_kept_pairs_are_those_within_the_bounds_in_their_order(pairs, longest, ratio):
    pairs.append(("a b c", "a b c"))
    kept, counts = filter_pairs(pairs_of(*pairs), longest, ratio)

    def fits(pair):
        low, high = sorted(len(side.split()) for side in pair)
        return low and high <= (longest or 99) and high <= (ratio or 99) * low

    assert rows(kept) == [pair for pair in pairs if fits(pair)]
    assert list(counts) == ["kept", *REASONS]
    assert counts["kept"] == len(kept) and sum(counts.values()) == len(pairs)


def test_each_pair_is_counted_under_its_first_reason_in_one_log_line(caplog):
    pairs = pairs_of(("", "a"), ("a", " "), ("a", "a a a a a"), ("a a", "a a a a"), ("a a", "a a a"))
    with caplog.at_level(logging.INFO):
        kept, counts = filter_pairs(pairs, 4, 1.5)
    assert rows(kept) == [("a a", "a a a")]
    assert counts == {"kept": 1, "empty": 2, "too long": 1, "ratio": 1}
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ({"max_length": 0}, "max_length"),
        ({"max_ratio": 0.5}, "max_ratio"),
        ({"max_length": 1}, "too long"),
    ],
)
def test_bounds_that_are_none_or_leave_nothing_are_refused(bounds, told):
    with pytest.raises(ValueError, match=told):
        filter_pairs(pairs_of(("a", "b b")), **bounds)
