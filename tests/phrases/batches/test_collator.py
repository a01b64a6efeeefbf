from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.batches.collator import PhraseCollator
from hf_targets.phrases.batches.negatives import Prefixes, SelfRetrieval
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams

WORDS = word_level_tokenizer(["a b c d\n"])  # few words, so that phrases come again
V = len(WORDS)
END = WORDS.eos_token_id
PLAIN = [id_ for id_ in range(V) if id_ not in WORDS.all_special_ids]
TOKENS = st.sampled_from([*PLAIN * 3, END])
ROWS = st.lists(
    st.lists(TOKENS, min_size=1, max_size=24) | st.lists(TOKENS, min_size=16, max_size=32), min_size=1, max_size=4
)


def collator(seed=0, miner=None, **settings):
    generator = torch.Generator().manual_seed(seed)
    dense = {"min_gap": 2, "phrase_rate": 1.0}  # many phrases in short rows
    return PhraseCollator(WORDS, miner or TokenNgrams(2, 4), generator=generator, **dense | settings)


def batch_of(rows, **settings):
    return collator(**settings)([{"input_ids": ids} for ids in rows])


def table(batch):
    """The entries of the batch's table, read as an encoder reads them."""
    return [tuple(batch["windows"][window, :length].tolist()) for window, length in batch["phrase_windows"].tolist()]


def seen(batch, row, name):
    mask = batch["phrase_attention_mask" if name in ("phrase_input_ids", "token_positions") else "attention_mask"]
    return batch[name][row][mask[row].bool()].tolist()


def pieces(batch, row, width=V):
    """The static ids at each position of the interleaved sequence."""
    entries = table(batch)
    return [(id_,) if id_ < width else entries[id_ - width] for id_ in seen(batch, row, "phrase_input_ids")]


@given(rows=ROWS, seed=st.integers(0, 9), min_gap=st.integers(0, 4), rate=st.sampled_from([0.0, 0.5, 1.0]))
def test_phrases_expanded_are_the_text_and_positions_point_at_their_last_tokens(rows, seed, min_gap, rate):
    batch = batch_of(rows, seed=seed, min_gap=min_gap, phrase_rate=rate)
    for row, ids in enumerate(rows):
        assert seen(batch, row, "input_ids") == ids
        parts = pieces(batch, row)
        assert [id_ for part in parts for id_ in part] == ids
        assert seen(batch, row, "token_positions") == (np.cumsum([len(part) for part in parts]) - 1).tolist()


@given(rows=ROWS, seed=st.integers(0, 9), min_gap=st.integers(0, 4))
def test_between_two_phrases_are_plain_tokens_enough_and_the_first_token_is_plain(rows, seed, min_gap):
    batch = batch_of(rows, seed=seed, min_gap=min_gap)
    for row in range(len(rows)):
        is_phrase = [len(part) > 1 for part in pieces(batch, row)]
        positions = np.flatnonzero(is_phrase)
        assert (np.diff(positions) > min_gap).all()
        assert not is_phrase[0]


@given(rows=ROWS, seed=st.integers(0, 9))
def test_entries_are_distinct_phrases(rows, seed):
    batch = batch_of(rows, seed=seed)
    entries = table(batch)
    assert len(set(entries)) == len(entries)
    assert all(len(entry) >= 2 and not set(entry) & set(WORDS.all_special_ids) for entry in entries)


@given(rows=ROWS, seed=st.integers(0, 9))
def test_the_phrase_to_predict_is_in_the_row_s_table(rows, seed):
    batch = batch_of(rows, seed=seed, negatives=[Prefixes(), SelfRetrieval()])
    for row, labels in enumerate(batch["phrase_targets"].tolist()):
        assert all(batch["phrase_mask"][row, label - V] for label in labels if label >= V)


def test_every_length_and_start_is_drawn_as_often():
    row = [PLAIN[index % 4] for index in range(3)]
    drawn = collator(miner=TokenNgrams(2, 3))
    counts = {}
    for _ in range(400):
        length = max(map(len, pieces(drawn([{"input_ids": [END, *row]}]), 0)))
        counts[length] = counts.get(length, 0) + 1
    assert counts.keys() == {2, 3}
    assert abs(counts[2] - 200) < 50
    half = collator(phrase_rate=0.5, miner=TokenNgrams(2, 2))
    taken = sum(len(pieces(half([{"input_ids": [END, *row[:2]]}]), 0)) == 2 for _ in range(400))
    assert abs(taken - 200) < 50


def test_unlabelled_tokens_and_special_tokens_stay_plain():
    ids = [PLAIN[index % 4] for index in range(12)] + [END, *PLAIN, *PLAIN]
    labels = [IGNORED] * 8 + ids[8:]
    for seed in range(20):
        batch = collator(seed, min_gap=0)([{"input_ids": ids, "labels": labels}])
        parts = pieces(batch, 0)
        assert all(len(part) == 1 for part in parts[:8])
        assert batch["phrase_targets"][0, :8].tolist() == [IGNORED] * 8
        assert (END,) in parts
        assert batch["phrase_targets"][0, 8:].tolist() == batch["phrase_input_ids"][0, 8:].tolist()


def test_without_phrases_the_two_sequences_are_one_and_the_table_is_empty():
    batch = batch_of([PLAIN * 4, PLAIN], phrase_rate=0.0)
    pairs = {"input_ids": "phrase_input_ids", "attention_mask": "phrase_attention_mask", "labels": "phrase_targets"}
    assert all(torch.equal(batch[name], batch[other]) for name, other in pairs.items())
    assert batch["phrase_windows"].shape == (0, 2)
    assert batch["phrase_mask"].shape == (2, 0)
    assert len(batch["windows"]) == 0


def test_phrases_are_longer_than_max_tokens_never_and_ids_start_at_vocab_size():
    batch = batch_of([PLAIN * 10], miner=TokenNgrams(2, 8), max_tokens=3, vocab_size=V + 5)
    assert max(map(len, pieces(batch, 0, V + 5))) == 3
    ids = seen(batch, 0, "phrase_input_ids")
    assert all(id_ < V or id_ >= V + 5 for id_ in ids)
    assert max(ids) < V + 5 + len(table(batch))


def gaps_between_phrases(seed):
    """How many tokens stand between the phrases of a long text, as a collator places them by default."""
    generator = torch.Generator().manual_seed(seed)
    batch = PhraseCollator(WORDS, WordNgrams(2, 5), generator=generator)([{"input_ids": PLAIN * 1000}])
    return np.diff(np.flatnonzero([len(part) > 1 for part in pieces(batch, 0)])) - 1


def test_by_default_phrases_stand_at_random_and_never_nearer_than_five_tokens():
    before, gaps = torch.get_rng_state(), gaps_between_phrases(seed=0)
    assert len(gaps) > 200 and gaps.min() == 5
    assert np.mean(gaps == 5) < 0.25 and len(np.unique(gaps)) > 12
    assert np.array_equal(gaps, gaps_between_phrases(seed=0))
    assert not np.array_equal(gaps, gaps_between_phrases(seed=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("spans", [[[0, 1]], [[0, 9]], [[2, 4], [1, 3]], [[1, 3], [1, 3]]])
def test_a_miner_s_spans_that_are_none_are_refused(spans):
    with pytest.raises(ValueError, match="miner's spans"):
        batch_of([PLAIN], miner=SimpleNamespace(spans=lambda text: np.array(spans)))


@pytest.mark.parametrize(("ids", "labels"), [([], []), ([1, V], [1, V]), ([1, 2], [1]), ([1, 2], [1, 3])])
def test_rows_that_make_no_sequence_are_refused(ids, labels):
    with pytest.raises(ValueError, match=r"got|row|length|labels"):
        collator()([{"input_ids": ids, "labels": labels}])


@pytest.mark.parametrize("wrong", [{"min_gap": -1}, {"phrase_rate": 1.5}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        collator(**wrong)


@settings(max_examples=15)
@given(rows=ROWS, seed=st.integers(0, 9), left=st.booleans())
def test_padding_changes_nothing_on_either_side(rows, seed, left):
    features = []
    for number, ids in enumerate(rows):
        fill = [0] * (number + 1)
        one = {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids}
        filled = {"input_ids": fill, "attention_mask": fill, "labels": [IGNORED] * len(fill)}
        features.append({name: filled[name] + one[name] if left else one[name] + filled[name] for name in one})
    features[0]["num_words"] = 3
    batch = collator(seed)(features)
    plain = batch_of(rows, seed=seed)
    assert all(torch.equal(batch[name], plain[name]) for name in plain)
    for mask, labels in (("attention_mask", "labels"), ("phrase_attention_mask", "phrase_targets")):
        assert ((batch[labels] == IGNORED) == (batch[mask] == 0)).all()
