import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import SequentialSampler

from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.phrases.batches.collator import PhraseCollator
from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.trainer import BEFORE_COLUMN, SEED_COLUMN, DrawnRows, RowDraws

WORDS = word_level_tokenizer(["a b c d\n"])
ROWS = [{"input_ids": torch.randint(2, len(WORDS), (20,)).tolist()} for _ in range(10)]


def draws(order=None, epoch=0, **settings):
    return list(RowDraws(order or SequentialSampler(ROWS), epoch=lambda: epoch, **{"stride": 4} | settings))


def test_a_row_names_the_rows_at_its_position_of_earlier_batches_of_its_process():
    assert draws() == [[(0, index)] for index in range(10)]
    named = [[index for _, index in draw] for draw in draws(epoch=1, num_before=2)]
    assert named[3:] == [[3], [4, 0], [5, 1], [6, 2], [7, 3], [8, 4, 0], [9, 5, 1]]


def test_each_epoch_has_the_order_that_is_its_own():
    epochs = [draws(SeedableRandomSampler(ROWS, data_seed=3), epoch) for epoch in range(3)]
    assert all(sorted(order) == [[(epoch, index)] for index in range(10)] for epoch, order in enumerate(epochs))
    assert len({str([index for [(_, index)] in order]) for order in epochs}) == 3
    shared = SeedableRandomSampler(ROWS, data_seed=3)
    assert [draws(shared, epoch) for epoch in (2, 0)] == [epochs[2], epochs[0]]


def test_the_seed_of_a_row_depends_on_the_seed_the_epoch_and_the_row_alone():
    rows = DrawnRows(ROWS, 0)
    drawn = {(epoch, index): rows[[(epoch, index)]][SEED_COLUMN] for epoch in range(3) for index in range(10)}
    assert len({*drawn.values(), DrawnRows(ROWS, 1)[[(0, 0)]][SEED_COLUMN]}) == 31
    later = rows[[(2, 5), (2, 3), (2, 1)]]
    assert later[SEED_COLUMN] == drawn[2, 5]
    assert later["input_ids"] == ROWS[5]["input_ids"]
    assert [row[SEED_COLUMN] for row in later[BEFORE_COLUMN]] == [drawn[2, 3], drawn[2, 1]]


def test_phrases_of_seeded_rows_leave_global_randomness_untouched():
    collate, before = PhraseCollator(WORDS, TokenNgrams(2, 4), phrase_rate=0.5), torch.get_rng_state()
    rows = [DrawnRows(ROWS, 7)[draw] for draw in draws(num_before=1)[6:]]
    one, other = collate(rows), collate(rows)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], other[name]) for name in one)
