"""A table of sources keeps what a dictionary of lists keeps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.phrases.vocabulary.sources import PhraseSource, SourceTable

phrases, names = st.integers(5, 9), st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), names, st.lists(phrases, max_size=4), st.integers(0, 2)),
        st.tuples(st.just("add_each"), names, st.lists(phrases, max_size=3), st.integers(0, 2)),
        st.tuples(st.just("remove"), st.lists(phrases, max_size=2)),
        st.tuples(st.just("forget"), st.lists(st.sampled_from("abcd"), max_size=2)),
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
        elif kind == "forget":
            left = {p: {s: None for s in kept if s.document not in arguments[0]} for p, kept in expected.items()}
            assert table.forget_documents(arguments[0]) == sorted(p for p, kept in left.items() if not kept)
            expected = {phrase: kept for phrase, kept in left.items() if kept}
        else:
            table = SourceTable.of_rows(*table.rows())
        documents, rows = table.rows()
        assert {phrase: table.of(phrase) for phrase in range(4, 11) if table.of(phrase)} == {
            phrase: tuple(kept) for phrase, kept in expected.items()
        }
        assert list(dict.fromkeys(documents[number] for number in rows[:, 1])) == documents
        assert [(p, PhraseSource(documents[d], *span)) for p, d, *span in rows.tolist()] == [
            (phrase, source) for phrase in sorted(expected) for source in expected[phrase]
        ]
