import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.phrases.vocabulary.sources import PhraseSource, SourceTable
from hf_targets.phrases.vocabulary.store import PhraseStore

SPECIAL = 0


def table_of(phrases):
    table = PhraseStore(400, special_ids=[SPECIAL])
    table.add_token_ids(phrases)
    return table


@given(data=st.data())
def test_adding_and_removing_leaves_what_a_plain_dictionary_has(data):
    table, living, given_ids = table_of([]), {}, []
    for _ in range(data.draw(st.integers(1, 6))):
        if living and data.draw(st.booleans()):
            removed = data.draw(st.lists(st.sampled_from(sorted(living)), max_size=3))
            table.remove(removed)
            living = {id_: phrase for id_, phrase in living.items() if id_ not in removed}
        phrases = data.draw(st.lists(st.lists(st.integers(3, 5), min_size=2, max_size=3).map(tuple), max_size=4))
        for id_, phrase in zip(table.add_token_ids(phrases), phrases, strict=True):
            if id_ not in living:
                assert id_ not in given_ids
                assert phrase not in living.values()
                given_ids.append(id_)
            living[id_] = phrase
        flat, offsets, is_alive = table.arrays()
        assert {id_: table.token_ids(id_) for id_ in table} == living
        assert {table.find(phrase): phrase for phrase in living.values()} == living
        assert table.num_ids == len(given_ids) == len(offsets) - 1
        rows = [tuple(flat[start:end].tolist()) for start, end in pairwise(offsets)]
        kept = np.flatnonzero(is_alive).tolist()
        assert {slot + table.vocab_size: rows[slot] for slot in kept} == living


def test_arrays_handed_out_do_not_change():
    table = table_of([[5, 6], [7, 8, 9]])
    before = table.arrays()
    assert all(map(np.shares_memory, table.arrays(), before)), "made once for each state"
    table.remove([table.vocab_size])
    assert table.arrays()[2].tolist() == [False, True] and before[2].tolist() == [True, True]


@pytest.mark.parametrize("phrase", [[7], [5, 400], [5, -1], [5, SPECIAL]])
def test_bad_tokens_are_refused_and_nothing_is_added(phrase):
    table = table_of([])
    with pytest.raises(ValueError, match="tok"):
        table.add_token_ids([[5, 6], phrase])
    assert table.num_ids == 0


def test_the_longest_phrase_is_taken_first_from_the_left():
    table = table_of([[5, 6], [5, 6, 7, 8], [6, 7], [7, 9]])
    assert table.merge_phrases([5, 6, 7, 8, 5, 6, 7, 9]) == [401, 400, 403]
    assert table.merge_phrases([6, 7, 5]) == [402, 5]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
def test_a_copy_has_the_same_phrases_and_grows_alone(copied):
    store = PhraseStore(vocab_size=100)
    store.add_token_ids([[5, 6], [5, 6, 7]])
    other = copied(store)
    assert other.add_token_ids([[8, 9]]) == [102]
    assert (len(store), len(other), other.merge_phrases([5, 6, 7])) == (2, 3, [101])
    other.remove([100])
    assert (list(store), list(other), store.arrays()[2].tolist()) == ([100, 101], [101, 102], [True, True])


phrases, names = st.integers(5, 9), st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), names, st.lists(phrases, max_size=4), st.integers(0, 2)),
        st.tuples(st.just("add_each"), names, st.lists(phrases, max_size=3), st.integers(0, 2)),
        st.tuples(st.just("remove"), st.lists(phrases, max_size=2)),
        st.tuples(st.just("reload")),
    ),
    max_size=12,
)


@given(steps)
def test_a_table_keeps_what_a_dictionary_of_lists_keeps(steps):
    table, expected = SourceTable(), {}
    for kind, *arguments in steps:
        if kind in ("add", "add_each"):
            name, found, start = arguments
            if kind == "add":
                table.add(name, found, [start] * len(found), np.full(len(found), start + 3))
            else:
                table.add_each(found, [[PhraseSource(name, start, start + 3)]] * len(found))
            for phrase in found:
                expected.setdefault(phrase, {})[PhraseSource(name, start, start + 3)] = None
        elif kind == "remove":
            table.remove(arguments[0])
            expected = {phrase: kept for phrase, kept in expected.items() if phrase not in arguments[0]}
        else:
            table = SourceTable.of_rows(*table.rows())
        assert {phrase: table.of(phrase) for phrase in range(4, 11) if table.of(phrase)} == {
            phrase: tuple(kept) for phrase, kept in expected.items()
        }
