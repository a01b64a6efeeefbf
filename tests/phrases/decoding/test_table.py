"""The phrases of a call: whose row has which, and what they are worth."""

import pytest
import torch

from hf_targets.phrases.decoding.table import PhraseIndex, PhraseTable
from tests.phrases.models import vocabulary_of
from tests.tiny_models import VOCAB

DIM = 8
# the second has a phrase of the first in another slot, and a removed one; the third has none
FIRST, SECOND, EMPTY = vocabulary_of([1, 2], [3, 4], [5, 6]), vocabulary_of([7, 8], [5, 6]), vocabulary_of()
SECOND.remove([VOCAB])
SLOTS = torch.tensor([[0, 1, 2], [0, 2, 0], [0, 0, 0]])
EXISTS = torch.tensor([[True, True, True], [False, True, False], [False, False, False]])


def embeddings():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, DIM, generator=generator), torch.randn(3, DIM, generator=generator)


def shared_table():
    return PhraseTable([FIRST], *embeddings(), SLOTS[:1], EXISTS[:1])


def ragged_table():
    return PhraseTable([FIRST, SECOND, EMPTY], *embeddings(), SLOTS, EXISTS)


def hidden_states(rows, time=4):
    return torch.randn(rows, time, DIM, generator=torch.Generator().manual_seed(1))


def test_logits_are_inner_products_with_each_phrase():
    hidden = hidden_states(5)
    torch.testing.assert_close(shared_table().logits(hidden), hidden @ embeddings()[1].T)


@pytest.mark.parametrize("beams", [1, 2])
def test_each_row_has_the_logits_of_its_own_phrases_and_its_beams_too(beams):
    hidden = hidden_states(3 * beams)
    logits = ragged_table().logits(hidden)
    assert logits.shape == (3 * beams, 4, 3)
    outputs = embeddings()[1]
    for row in range(3 * beams):
        for slot in range(3):
            if EXISTS[row // beams, slot]:
                expected = hidden[row] @ outputs[SLOTS[row // beams, slot]]
                torch.testing.assert_close(logits[row, :, slot], expected)
            else:
                assert (logits[row, :, slot] == -torch.inf).all()


def test_logits_come_in_the_type_of_the_hidden_states():
    assert ragged_table().logits(hidden_states(3).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("beams", [1, 2])
def test_phrases_are_embedded_by_their_row_and_tokens_stay(beams):
    ids = torch.tensor([[3, VOCAB, VOCAB + 2], [VOCAB + 1, 4, 5], [6, 7, 8]]).repeat_interleave(beams, dim=0)
    tokens = hidden_states(3 * beams, 3)
    embedded = ragged_table().embed(ids, tokens)
    inputs = embeddings()[0]
    expected = tokens.clone()
    expected[:beams, 1], expected[:beams, 2] = inputs[0], inputs[2]
    expected[beams : 2 * beams, 0] = inputs[2]
    assert torch.equal(embedded, expected)


def test_a_table_without_a_phrase_leaves_tokens_alone():
    table = PhraseTable([EMPTY], torch.zeros(0, DIM), torch.zeros(0, DIM), SLOTS[:1, :0], EXISTS[:1, :0])
    tokens = hidden_states(2)
    assert table.embed(torch.ones(2, 4, dtype=torch.long), tokens) is tokens
    assert table.logits(tokens).shape == (2, 4, 0)


def test_rows_of_a_batch_and_what_they_miss():
    rows, missing = ragged_table().rows_of_batch(6, 2)
    assert rows.shape == (6, 3, DIM) and missing.shape == (6, 2, 3)
    assert torch.equal(missing[:, 0], ~EXISTS.repeat_interleave(2, dim=0))
    rows, missing = shared_table().rows_of_batch(6, 2)
    assert rows.shape == (3, DIM) and missing is None


@pytest.mark.parametrize(
    ("ids", "position"),
    [
        ([[1, VOCAB + 3], [1, 1], [1, 1]], f"got {VOCAB + 3} in row 0"),
        ([[1, 1], [VOCAB, 1], [1, 1]], f"got {VOCAB} in row 1"),
        ([[1, -1], [1, 1], [1, 1]], "got -1 in row 0"),
    ],
)
def test_ids_that_a_row_does_not_have_are_refused_with_their_row(ids, position):
    with pytest.raises(ValueError, match=position):
        ragged_table().check_ids(torch.tensor(ids), "input_ids")


def test_ids_that_a_row_has_pass_and_ignored_labels_too():
    ragged_table().check_ids(torch.tensor([[1, VOCAB + 2], [0, VOCAB + 1], [49, 0]]), "input_ids")
    ragged_table().check_ids(torch.tensor([[-100, 1], [-100, VOCAB + 1], [2, -100]]), "labels", -100)


def test_missing_are_exactly_the_ids_that_are_refused():
    ids = torch.arange(-2, VOCAB + 5).expand(6, -1)
    expected = torch.ones(6, len(ids[0]), dtype=torch.bool)
    expected[:, 2 : VOCAB + 2] = False
    expected[:, VOCAB + 2 : VOCAB + 5] = ~EXISTS.repeat_interleave(2, dim=0)
    assert torch.equal(ragged_table().missing(ids), expected)


def test_rows_must_be_shared_out_evenly():
    ragged_table().check_batch(6)
    shared_table().check_batch(5)
    with pytest.raises(ValueError, match=r"one vocabulary, or one for each row, got 3 for a batch of 4"):
        ragged_table().check_batch(4)


class Listed:
    """Finds the phrases it is told, with their slots, and -1 where there are fewer."""

    keeps_vectors = True

    def __init__(self, scores, slots):
        self.answer = torch.tensor(scores), torch.tensor(slots)

    def __len__(self):
        return 3

    def search(self, queries, k):
        return self.answer


def test_an_index_that_finds_all_gives_the_logits_of_the_table():
    pytest.importorskip("faiss")
    index = PhraseIndex.build(embeddings()[1])
    hidden = hidden_states(5)
    torch.testing.assert_close(shared_table().searched(index, 3).logits(hidden), shared_table().logits(hidden))


def test_phrases_that_an_index_does_not_find_have_no_probability():
    pytest.importorskip("faiss")
    hidden = hidden_states(5)
    full = shared_table().logits(hidden)
    logits = shared_table().searched(PhraseIndex.build(embeddings()[1]), 2).logits(hidden)
    kept = torch.zeros_like(full, dtype=torch.bool).scatter(2, full.topk(2).indices, True)
    torch.testing.assert_close(logits, full.masked_fill(~kept, -torch.inf))


def test_places_that_an_index_leaves_open_change_nothing():
    hidden, none = hidden_states(1, 2), -torch.inf
    (a, _, c), (_, b, _) = shared_table().logits(hidden)[0].tolist()
    table = shared_table().searched(Listed([[c, a, 0.0], [b, -9.0, -9.0]], [[2, 0, -1], [1, -1, -1]]), 3)
    assert table.logits(hidden).tolist() == [[[a, none, c], [none, b, none]]]


def test_removed_phrases_are_not_chosen_though_an_index_finds_them():
    pair = embeddings()
    table = PhraseTable([SECOND], *pair, torch.tensor([[0, 2]]), torch.tensor([[False, True]]))
    index = PhraseIndex.build(pair[1][[0, 2]])
    logits = table.searched(index, 2).logits(hidden_states(2))
    assert (logits[..., 0] == -torch.inf).all() and logits[..., 1].isfinite().all()


@pytest.mark.parametrize(
    ("table", "neighbours", "rows"), [(ragged_table, 2, 3), (shared_table, 0, 3), (shared_table, 2, 2)]
)
def test_an_index_must_fit_the_table(table, neighbours, rows):
    pytest.importorskip("faiss")
    with pytest.raises(ValueError, match=r"index|neighbours"):
        table().searched(PhraseIndex.build(embeddings()[1][:rows]), neighbours)
