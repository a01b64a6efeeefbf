import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.awd_lstm.streams import SegmentSampler, StreamRows, TextStream, segment_lengths
from hf_targets.data.blocks import pack_blocks
from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.maths.losses import IGNORED

TEXT = Dataset.from_dict({"text": [f"{'a b c d e'[: 1 + n % 9]} f{n}\n" for n in range(17)]})


def stream_of(num_tokens: int) -> TextStream:
    ids = np.arange(num_tokens)
    return TextStream(ids, ids + 1, num_words=99)


@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_blocks_of_any_length_join_to_the_same_text(block_size):
    tokenizer = word_level_tokenizer(TEXT["text"])
    blocks = pack_blocks(TEXT, tokenizer, block_size)
    stream = TextStream.of_blocks(blocks, "train")
    whole = [token for ids in tokenizer(list(TEXT["text"]), add_special_tokens=False)["input_ids"] for token in ids]
    assert stream.ids.tolist() == whole[:-1] and stream.targets.tolist() == whole[1:]
    assert stream.num_words == sum(blocks["num_words"])


def test_what_is_not_one_text_is_refused():
    blocks = pack_blocks(TEXT, word_level_tokenizer(TEXT["text"]), 5)
    for changed, index in ((blocks.select([0, 2, 3]), 1), (blocks.shuffle(seed=1), r"\d"), (blocks.select([1, 0]), 1)):
        with pytest.raises(
            ValueError, match=f"the train data must be one text, .* and block {index} does not: it begins"
        ):
            TextStream.of_blocks(changed, "train")


@given(data=st.data(), num_tokens=st.integers(12, 200), processes=st.integers(1, 3), size=st.integers(1, 4))
def test_all_groups_of_all_processes_together_read_each_token_once_in_order(data, num_tokens, processes, size):
    num_groups = data.draw(st.integers(1, 12 // (processes * size) or 1))
    num_rows = size * num_groups * processes
    seed = data.draw(st.none() | st.integers(0, 9))
    read, sampled = {row: [] for row in range(num_rows)}, set()
    for process in range(processes):
        starts = [(group * processes + process) * size for group in range(num_groups)]
        rows = StreamRows(stream_of(num_tokens), num_rows, [range(start, start + size) for start in starts])
        sampler = SegmentSampler(segment_lengths(rows.length, 7, seed), num_groups, seed)
        sampler.set_epoch(data.draw(st.just(3)))
        segments = [segment for batch in sampler for segment in batch]
        sampled.add(tuple(segments))
        assert len(segments) == len(sampler)
        for segment in segments:
            batch = rows[segment]
            group = batch["segment"]["group"]
            assert batch["segment"]["begins"] == (segment[0] == 0) and batch["input_ids"].shape[0] == size
            for offset, (ids, labels) in enumerate(zip(batch["input_ids"], batch["labels"], strict=True)):
                pairs = [(int(one), int(label)) for one, label in zip(ids, labels, strict=True) if label != IGNORED]
                read[starts[group] + offset] += pairs
    assert len(sampled) == 1
    assert [pair for row in range(num_rows) for pair in read[row]] == [(n, n + 1) for n in range(num_tokens)]


def test_rows_beyond_the_text_have_no_target_and_words_count_once():
    rows = StreamRows(stream_of(10), 2, [range(0, 2), range(2, 4)])
    text, empty = rows[(0, 5, 0)], rows[(0, 5, 1)]
    assert text["num_words"].tolist() == [99, 0] and rows[(2, 5, 0)]["num_words"].tolist() == [0, 0]
    assert empty["labels"].eq(IGNORED).all() and empty["num_words"].tolist() == [0, 0]
    with pytest.raises(ValueError, match="a text of 3 tokens to predict cannot be read in 4 rows at once"):
        StreamRows(stream_of(3), 4, [range(4)])


def test_segments_are_as_long_as_published():
    lengths = torch.tensor(segment_lengths(1_000_000, 70, 0), dtype=torch.float64)[:-1]
    whole, halved = lengths[lengths > 52], lengths[lengths <= 52]
    assert abs(whole.mean() - 69.5) < 0.3 and abs(halved.mean() - 34.5) < 1  # a length is rounded down
    assert abs(len(halved) / len(lengths) - 0.05) < 0.01 and abs(whole.std() - 5) < 0.3
    assert min(segment_lengths(10_000, 6, 0)[:-1]) == 5


def test_each_epoch_has_the_same_segments_in_another_order():
    sampler, orders = SegmentSampler(segment_lengths(2000, 20, 4), 1, seed=4), []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append([end - begin for ((begin, end, _),) in sampler])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
