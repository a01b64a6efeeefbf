"""A collection on disk holds, and finds, what a dictionary and a product with all vectors would."""

import math
import signal
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.retrieval.collection import DocumentCollection
from hf_targets.retrieval.documents import DocumentRetriever
from tests.programs import run_program
from tests.retrieval.letter_encoder import LetterEncoder

pytestmark = pytest.mark.skipif(find_spec("lancedb") is None, reason="LanceDB is not installed")
SHELF = {"one": "abba", "it's": "cab ", "three": "dead", "größe 🙂": "ee\n", "": "bbb"}
IDS = st.sampled_from([*SHELF, "a", "b", "c"])
DOCUMENTS = st.dictionaries(IDS, st.text("abcde", min_size=1, max_size=6), min_size=1, max_size=6)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), DOCUMENTS),
        st.tuples(st.just("delete"), st.sets(IDS, max_size=4)),
        st.tuples(st.sampled_from(["compact", "open"]), st.none()),
    ),
    max_size=6,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "shelf"


def make(folder, documents=SHELF):
    collection = DocumentCollection.create(folder, LetterEncoder())
    collection.add(documents)
    return collection


def scores_of(documents, query):
    count = LetterEncoder().encode_query
    return {name: float(count([query])[0] @ count([text])[0]) for name, text in documents.items()}


def assert_holds(collection, documents, k=4):
    assert dict(collection.items()) == documents and len(collection) == len(documents)
    assert sorted(collection) == sorted(documents)
    assert {name for name in SHELF if name in collection} == {*SHELF} & {*documents}
    assert all(collection[name] == text for name, text in documents.items())
    queries = ["ab", "dde", "c"]
    if not documents:
        with pytest.raises(ValueError, match="has none"):
            collection.retrieve(queries, k)
        return
    for query, row in zip(queries, collection.retrieve(queries, k), strict=True):
        scores = scores_of(documents, query)
        assert [score for _, score in row] == sorted(scores.values(), reverse=True)[:k]
        assert len(dict(row)) == len(row) and all(scores[name] == score for name, score in row)


@settings(max_examples=15)
@given(actions=ACTIONS, k=st.integers(1, 9))
def test_a_collection_is_a_dictionary_with_exact_search(tmp_path_factory, actions, k):
    folder, expected = tmp_path_factory.mktemp("collections") / "it", {}
    collection = DocumentCollection.create(folder, LetterEncoder())
    for kind, argument in actions:
        if kind == "add":
            collection.add(argument, replace=True)
            expected |= argument
        elif kind == "delete":
            collection.delete(gone := argument & expected.keys())
            expected = {name: text for name, text in expected.items() if name not in gone}
        elif kind == "compact":
            collection.table.optimize()
        else:
            collection = DocumentCollection.open(folder, LetterEncoder())
    assert_holds(collection, expected, k)
    assert_holds(DocumentCollection.open(folder, LetterEncoder()), expected, k)


def test_a_collection_finds_what_a_retriever_in_memory_finds(folder):
    collection, retriever = make(folder), DocumentRetriever(SHELF, LetterEncoder())
    queries = ["a", "bb c", "edd"] * 30
    ours, theirs = collection.retrieve(queries, 3), retriever.retrieve(queries, 3)
    assert [[score for _, score in row] for row in ours] == [[score for _, score in row] for row in theirs]
    assert collection.retrieve([], 3) == []


def test_words_find_the_documents_that_share_one_also_after_others_were_added_and_deleted(folder):
    documents = {"pets": "The cat sat on the mat.", "sky": "Stars and planets shine.", "größe": "Die Größe des Körpers"}
    collection = make(folder, documents)
    collection.add({"tokyo": "東京に行く", "late": "a planet and its stars", "gone": "stars stars"})
    collection.delete(["gone"])
    for _ in range(2):
        found = {
            query: [name for name, _ in row]
            for query in ("stars", "GRÖSSE", "東京", 'the "cat" OR \'dog', "unknown")
            for row in collection.retrieve([query], 5, by="words")
        }
        assert {*found["stars"]} == {"sky", "late"} and found["GRÖSSE"] == ["größe"] and found["東京"] == ["tokyo"]
        assert found['the "cat" OR \'dog'] == ["pets"] and found["unknown"] == []
        collection.table.optimize()


def test_both_ways_together_prefer_what_both_find(folder):
    collection = make(folder, {"word": "eeee bad", "vector": "aaaa cd", "both": "aaa bad", "neither": "e"})
    (found,) = collection.retrieve(["aab bad"], 3, by="both")
    assert found[0][0] == "both" and {name for name, _ in found[1:]} == {"word", "vector"}
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_each_text_is_encoded_once(folder):
    collection = make(folder)
    count = len(collection.encoder.encoded)
    collection.add(dict(SHELF), replace=True)  # the same texts
    collection.add({"one": "new a", "three": SHELF["three"]}, replace=True)
    assert collection.encoder.encoded[count:] == ["new a"]
    assert_holds(collection, {**SHELF, "one": "new a"})


def test_a_reader_keeps_its_version_until_it_is_refreshed(folder):
    writer, reader = make(folder), DocumentCollection.open(folder, LetterEncoder())
    writer.delete(["one", "it's"])
    writer.add({"new": "aaaa", "three": "abc"}, replace=True)
    writer.table.optimize()
    assert_holds(reader, SHELF)
    reader.refresh()
    assert_holds(reader, {**{name: SHELF[name] for name in ("größe 🙂", "")}, "new": "aaaa", "three": "abc"})


def test_a_writer_sees_what_another_has_written(folder):
    first = make(folder)
    second = DocumentCollection.open(folder, LetterEncoder())
    first.add({"new": "abc"})
    with pytest.raises(ValueError, match="'new'"):
        second.add({"new": "cab"})
    second.delete(["new"])
    first.add({"new": "cab"})
    assert_holds(first, {**SHELF, "new": "cab"})


KILLED = """
import os, signal, sys
from hf_targets.retrieval.collection import DocumentCollection
from tests.retrieval.letter_encoder import LetterEncoder

class Killed(LetterEncoder):
    def encode_document(self, texts):
        if len(self.encoded) > 8000:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_document(texts)

shelf = DocumentCollection.open(sys.argv[1], Killed())
shelf.add({f"new {number}": "abc" for number in range(20_000)} | {"one": "e"}, replace=True)
"""


def test_a_writer_killed_while_it_adds_leaves_none_of_the_documents(folder):
    make(folder)
    assert run_program(KILLED, folder).returncode == -signal.SIGKILL
    collection = DocumentCollection.open(folder, LetterEncoder())
    assert_holds(collection, SHELF)
    collection.add({"next": "ab"})
    assert_holds(collection, {**SHELF, "next": "ab"})


def test_an_encoder_that_fails_while_documents_are_added_leaves_none_of_them(folder):
    class Failing(LetterEncoder):
        def encode_document(self, texts):
            return super().encode_document(texts) if len(self.encoded) < 3000 else texts[0].missing

    collection = DocumentCollection.create(folder, Failing())
    collection.add(SHELF)
    with pytest.raises(AttributeError, match="missing"):
        collection.add({str(number): "ab" for number in range(6000)})
    assert_holds(collection, SHELF)
    collection.encoder.encode_document = lambda texts: torch.full((len(texts), 5), math.nan)
    with pytest.raises(ValueError, match="not finite"):
        collection.add({"new": "text"})
    assert_holds(collection, SHELF)


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (lambda shelf: shelf.add({"one": "new"}), "'one'"),
        (lambda shelf: shelf.add({"new": " \n"}), "'new'"),
        (lambda shelf: shelf.add({5: "text"}), "5"),
        (lambda shelf: shelf.add({"new": "\ud800"}), "whole letters"),
        (lambda shelf: shelf.add(["text"]), "by id"),
        (lambda shelf: shelf.delete(["one", "never"]), "'never'"),
        (lambda shelf: shelf.retrieve("one", 1), "list of texts"),
        (lambda shelf: shelf.retrieve(["a"], 0), "k must"),
        (lambda shelf: shelf.retrieve(["a"], 1, by="smell"), "smell"),
    ],
)
def test_bad_arguments_are_refused_and_change_nothing(folder, act, word):
    collection = make(folder)
    with pytest.raises(ValueError, match=word):
        act(collection)
    with pytest.raises(KeyError, match="never"):
        collection["never"]
    assert_holds(DocumentCollection.open(folder, LetterEncoder()), SHELF)


def test_a_collection_is_created_once_and_opened_with_its_encoder(folder, tmp_path):
    make(folder)
    with pytest.raises(ValueError, match="already"):
        DocumentCollection.create(folder, LetterEncoder())
    for letters in ("abcdefg", "xyzuv", "ubcde"):
        with pytest.raises(ValueError, match="another encoder"):
            DocumentCollection.open(folder, LetterEncoder(letters))
    with pytest.raises(ValueError, match="not a collection"):
        DocumentCollection.open(tmp_path / "nowhere", LetterEncoder())
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_file_of_documents_is_named_with_its_folder(folder):
    collection = make(folder)
    for file in (folder / "documents.lance" / "data").iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    name = next(iter(SHELF))
    for read in (lambda: collection[name], lambda: dict(collection), lambda: collection.add({"new": "a text"})):
        with pytest.raises(ValueError, match=f"cannot read {folder}"):
            read()
    for by in ("vectors", "words", "both"):
        with pytest.raises(ValueError, match=f"cannot read {folder}"):
            collection.retrieve(["a cat"], 1, by=by)
    for file in (folder / "documents.lance" / "_versions").iterdir():
        file.write_bytes(b"broken")
    with pytest.raises(ValueError, match=f"cannot read {folder}"):
        DocumentCollection.open(folder, LetterEncoder())


def test_a_collection_whose_creator_was_killed_can_be_opened_and_filled(folder):
    killed = (
        "import os, sys, lancedb\nfrom hf_targets.retrieval.collection import DocumentCollection\n"
        "from tests.retrieval.letter_encoder import LetterEncoder\n"
        "lancedb.table.LanceTable.create_index = lambda *args, **kwargs: os._exit(9)\n"
        "DocumentCollection.create(sys.argv[1], LetterEncoder())"
    )
    assert run_program(killed, folder).returncode == 9
    collection = DocumentCollection.open(folder, LetterEncoder())
    collection.add(SHELF)
    assert_holds(collection, SHELF)
    assert [name for name, _ in collection.retrieve(["dead"], 1, by="words")[0]] == ["three"]
