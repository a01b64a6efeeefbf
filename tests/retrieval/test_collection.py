"""A collection on disk holds, and finds, what a dictionary and a product with all vectors would."""

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.retrieval.collection import DocumentCollection
from hf_targets.retrieval.collection_shards import write_shard
from hf_targets.retrieval.documents import DocumentRetriever
from tests.retrieval.letter_encoder import LetterEncoder

faiss = pytest.importorskip("faiss")
faiss.omp_set_num_threads(1)
SHELF = {"one": "abba", "two": "cab ", "three": "dead", "größe 🙂": "ee\n", "": "bbb"}
IDS = st.sampled_from([*SHELF, "a", "b", "c", "d", "e", "f"])
TEXTS = st.text("abcde", min_size=1, max_size=6)
DOCUMENTS = st.dictionaries(IDS, TEXTS, max_size=7)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), DOCUMENTS),
        st.tuples(st.just("delete"), st.sets(IDS, max_size=4)),
        st.tuples(st.just("compact"), st.sampled_from([0.01, 0.5, 1.0])),
        st.tuples(st.just("open"), st.none()),
    ),
    max_size=8,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "shelf"


def make(folder, documents=SHELF, **options):
    collection = DocumentCollection.create(folder, LetterEncoder(), **options)
    collection.add(documents)
    return collection


def scores_of(documents, query, k):
    """Return the k highest scores, and the score of each document."""
    count = LetterEncoder().encode_queries
    scores = {name: float(count([query])[0] @ count([text])[0]) for name, text in documents.items()}
    return sorted(scores.values(), reverse=True)[:k], scores


def assert_holds(collection, documents, k):
    assert dict(collection) == documents and len(collection) == len(documents)
    assert [*collection] == [*dict.fromkeys(collection)]
    assert {name for name in SHELF if name in collection} == {*SHELF} & {*documents}
    queries = ["ab", "dde", "c"]
    if not documents:
        with pytest.raises(ValueError, match=r"there must be a document to retrieve, and .* has none"):
            collection.retrieve(queries, k)
        return
    for query, row in zip(queries, collection.retrieve(queries, k), strict=True):
        best, scores = scores_of(documents, query, k)
        assert [score for _, score in row] == best
        assert len(dict(row)) == len(row) and all(scores[name] == score for name, score in row)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(actions=ACTIONS, shard_size=st.integers(1, 5), k=st.integers(1, 9))
def test_a_collection_is_a_dictionary_with_exact_search(tmp_path_factory, actions, shard_size, k):
    folder, encoder, expected = tmp_path_factory.mktemp("collections") / "it", LetterEncoder(), {}
    collection = DocumentCollection.create(folder, encoder, shard_size=shard_size)
    for kind, argument in actions:
        if kind == "add":
            collection.add(argument, replace=True)
            expected |= argument
        elif kind == "delete":
            gone = argument & expected.keys()
            collection.delete(gone)
            expected = {name: text for name, text in expected.items() if name not in gone}
        elif kind == "compact":
            collection.compact(argument)
        else:
            collection = DocumentCollection.open(folder, encoder)
        assert_holds(collection, expected, k)
    assert_holds(DocumentCollection.open(folder, encoder), expected, k)


def test_ids_with_the_same_hash_are_told_apart(folder, monkeypatch):
    for module in ("collection_shards", "collection_state"):
        monkeypatch.setattr(f"hf_targets.retrieval.{module}.id_hashes", lambda names: np.full(len(names), 7, np.uint64))
    collection = make(folder, shard_size=3)
    assert_holds(collection, SHELF, 3)
    collection.delete(["two"])
    assert "two" not in collection and "never" not in collection
    assert_holds(collection, {name: text for name, text in SHELF.items() if name != "two"}, 3)


def test_a_collection_finds_what_a_retriever_in_memory_finds(folder):
    collection, encoder = make(folder, shard_size=2), LetterEncoder()
    retriever = DocumentRetriever(SHELF, encoder, encode_queries=encoder.encode_queries)
    queries = ["a", "bb c", "edd"] * 40
    ours, theirs = collection.retrieve(queries, 3), retriever.retrieve(queries, 3)
    assert [[score for _, score in row] for row in ours] == [[score for _, score in row] for row in theirs]
    assert collection.retrieve([], 3) == []


def test_documents_keep_their_order_and_each_is_encoded_once(folder):
    collection = DocumentCollection.create(folder, LetterEncoder(), shard_size=8)
    documents = {str(number): "abcde"[number % 5] * (number + 1) for number in range(50)}
    for name, text in documents.items():
        collection.add({name: text})
    collection.compact()
    assert list(collection.items()) == list(documents.items())
    assert collection.encoder.encoded == list(documents.values())
    collection.add(dict(documents), replace=True)  # the same texts
    assert len(collection.encoder.encoded) == 50
    collection.add({"7": "new a", "8": documents["8"]}, replace=True)
    assert collection.encoder.encoded[50:] == ["new a"] and collection["7"] == "new a"


@pytest.mark.parametrize("sizes", [[1] * 70, [3, 1, 1, 5, 2] * 8, [100], [7] * 12, [16, 1] * 6])
def test_there_are_few_shards_and_a_document_is_written_again_seldom(folder, sizes, monkeypatch):
    written = []
    monkeypatch.setattr(
        "hf_targets.retrieval.collection.write_shard",
        lambda *given: written.append(len(given[1])) or write_shard(*given),
    )
    collection = DocumentCollection.create(folder, LetterEncoder(), shard_size=16)
    for number, size in enumerate(sizes):
        collection.add({f"{number}-{part}": "abc" for part in range(size)})
        count = len(collection)
        assert len(list(folder.glob("*.faiss"))) <= 2 * count / 16 + math.log2(16) + 1
    assert max(written) <= 16
    assert sum(written) <= len(collection) * (1 + math.log2(16))


def test_deleted_documents_are_marked_and_compacting_frees_their_space(folder):
    documents = {str(number): "abcde"[number % 5] * 30 for number in range(64)}
    collection = make(folder, documents, shard_size=16)
    before = {path: path.read_bytes() for path in folder.glob("shard-*")}
    collection.delete([str(number) for number in range(0, 16)])  # a whole shard
    collection.delete([str(number) for number in range(16, 20)])
    collection.delete(["60"])
    left = {path: path.read_bytes() for path in folder.glob("shard-*")}
    assert len(left) == len(before) - 2 + 2  # a shard of two files less, two files of marks more
    assert all(before[path] == left[path] for path in left if path.suffix != ".deleted")
    collection.compact(0.2)  # one shard of 12 in 16, and one of 15 in 16 that stays
    assert_holds(collection, {name: text for name, text in documents.items() if int(name) > 19 and name != "60"}, 3)
    assert len(list(folder.glob("*.deleted"))) == 1
    assert len(collection.encoder.encoded) == 64


@pytest.mark.parametrize("name", ["two", "never"])
def test_a_document_that_is_not_there_is_named(folder, name):
    collection = make(folder)
    collection.delete(["two"])
    with pytest.raises(KeyError, match=f"document '{name}' was deleted, or was never there; ask with `in` first"):
        collection[name]
    assert collection.get(name) is None and 5 not in collection


def test_a_reader_goes_on_with_its_state_until_it_is_refreshed(folder):
    writer, encoder = make(folder, shard_size=2), LetterEncoder()
    reader = DocumentCollection.open(folder, encoder)
    writer.delete(["one", "two"])
    writer.add({"new": "aaaa", "three": "abc"}, replace=True)
    writer.compact(0.01)
    assert_holds(reader, SHELF, 4)
    reader.refresh()
    assert_holds(reader, {**{name: SHELF[name] for name in ("größe 🙂", "")}, "new": "aaaa", "three": "abc"}, 4)


def test_readers_and_writers_may_be_threads(folder):
    collection = make(folder, {"fixed": "aaaaaaaaa"}, shard_size=4)

    def write(number):
        for part in range(6):
            collection.add({f"{number}-{part}": "ab"})
        collection.delete([f"{number}-0"])

    def read(_):
        return {collection.retrieve(["a"], 1)[0][0] for _ in range(30)}

    with ThreadPoolExecutor(4) as threads:
        writes, reads = [threads.submit(write, number) for number in range(3)], threads.submit(read, 0)
        assert reads.result() == {("fixed", 9.0)}
        assert [each.result() for each in writes] == [None] * 3
    assert len(collection) == 1 + 3 * 5


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda shelf: shelf.add({"one": "new"}), "an id must be new, and 1 exist, such as 'one'; leave them out, or"),
        (lambda shelf: shelf.add({"new": " \n"}), r"document 'new' is ' \\n'"),
        (lambda shelf: shelf.add({"new": None}), "document 'new' is None"),
        (lambda shelf: shelf.add({5: "text"}), "the id of a document must be a text, got 5"),
        (lambda shelf: shelf.add({"new": "\ud800"}), "document 'new' must have whole letters, got half"),
        (lambda shelf: shelf.add(["text"]), "documents must be a mapping of ids to texts, got list"),
        (lambda shelf: shelf.delete(["one", "never"]), "1 of 2 are not, such as 'never'"),
        (lambda shelf: shelf.delete("one"), "ids must be a list of ids, got the text 'one'"),
        (lambda shelf: shelf.compact(0), "deleted_share must be above 0 and at most 1, got 0"),
        (lambda shelf: shelf.retrieve("one", 1), "queries must be a list of texts, got the text 'one'"),
        (lambda shelf: shelf.retrieve(["a", " "], 1), "query 1 is ' '"),
        (lambda shelf: shelf.retrieve(["a"], 0), "k must be an integer, 1 or more, got 0"),
        (lambda shelf: shelf.delete([1]), "the id of a document is a text, got 1; give"),
    ],
)
def test_bad_arguments_are_refused_and_change_nothing(folder, act, message):
    collection = make(folder)
    with pytest.raises(ValueError, match=message):
        act(collection)
    assert_holds(DocumentCollection.open(folder, LetterEncoder()), SHELF, 3)


def test_vectors_of_another_width_are_refused(folder, monkeypatch):
    monkeypatch.setattr(LetterEncoder, "fingerprint", "the same")
    collection, wide = make(folder), LetterEncoder("abcdefg")
    other = DocumentCollection(folder, wide, collection._state)
    with pytest.raises(ValueError, match="the width that they have, 5, got 7"):
        other.add({"new": "text"})
    with pytest.raises(ValueError, match="as wide as the documents', 5, got 7"):
        other.retrieve(["a"], 1)
    wide.encode_queries = lambda texts: torch.full((len(texts), 5), math.nan)
    with pytest.raises(ValueError, match="must return finite vectors"):
        other.add({"new": "text"})
    assert dict(DocumentCollection.open(folder, wide)) == SHELF


def test_a_collection_is_created_once_and_opened_with_its_encoder(folder, tmp_path):
    make(folder)
    with pytest.raises(ValueError, match=f"{folder} has a collection already; open it"):
        DocumentCollection.create(folder, LetterEncoder())
    with pytest.raises(ValueError, match="was made with counts of abcde, not counts of xyz"):
        DocumentCollection.open(folder, LetterEncoder("xyz"))
    with pytest.raises(ValueError, match=r"must be a folder that DocumentCollection.create made"):
        DocumentCollection.open(tmp_path / "nowhere", LetterEncoder())
    with pytest.raises(ValueError, match=r"shard_size must be an integer, at least 1, got 2\.5"):
        DocumentCollection.create(tmp_path / "other", LetterEncoder(), shard_size=2.5)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"a collection is a folder, and .* is a file"):
        DocumentCollection.create(tmp_path / "file", LetterEncoder())


def test_a_folder_that_becomes_a_collection_of_another_encoder_is_noticed(folder):
    old = make(folder)
    shutil.rmtree(folder)
    DocumentCollection.create(folder, LetterEncoder("vwxyz"))
    for act in (old.refresh, lambda: old.add({"new": "text"})):
        with pytest.raises(ValueError, match="was made with counts of vwxyz, not counts of abcde"):
            act()
    assert dict(old) == SHELF


def altered(change):
    """Return a function that changes the manifest."""

    def alter(folder):
        path = folder / "collection.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return alter


def cut(ending):
    """Return a function that takes the last byte of a file."""

    def alter(folder):
        (path,) = folder.glob(f"*{ending}")
        path.write_bytes(path.read_bytes()[:-1])

    return alter


def overwrite(ending):
    """Return a function that replaces the content of a file by as many other bytes."""

    def alter(folder):
        (path,) = folder.glob(f"*{ending}")
        path.write_bytes(b"x" * path.stat().st_size)

    return alter


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut(".faiss"), r"\.faiss is truncated or altered: it must have \d+ bytes"),
        (cut(".arrow"), r"\.arrow is truncated or altered: it must have \d+ bytes"),
        (cut(".deleted"), r"\.deleted is truncated or altered: .*checksum"),
        (overwrite(".faiss"), r"\.faiss is truncated or altered"),
        (overwrite(".arrow"), r"\.arrow is truncated or altered"),
        (overwrite(".deleted"), r"\.deleted is truncated or altered"),
        (lambda folder: next(folder.glob("*.arrow")).unlink(), r"is missing \(.*\.arrow"),
        (lambda folder: (folder / "collection.json").write_text("{"), "collection.json is truncated or altered"),
        (altered(lambda told: {**told, "version": 2}), "must be of version 1, got 2"),
        (altered(lambda told: [told]), "must be of version 1, got None"),
        (altered(lambda told: {**told, "more": 1}), "collection.json is truncated or altered"),
        (altered(lambda told: {**told, "dim": 4}), "must be an IndexFlatIP of 5 vectors of width 4"),
        (altered(lambda told: {**told, "shards": [{"name": "x"}]}), "collection.json is truncated or altered"),
        (
            altered(lambda told: {**told, "shards": [{**told["shards"][0], "count": -1}]}),
            "sizes of .* must be positive integers",
        ),
    ],
)
def test_damaged_files_are_refused_by_name(folder, damage, message):
    make(folder).delete(["one"])
    damage(folder)
    with pytest.raises(ValueError, match=message):
        DocumentCollection.open(folder, LetterEncoder())


def test_what_is_no_encoder_and_no_folder_is_told(folder, tmp_path):
    with pytest.raises(
        ValueError, match="must have fingerprint and encode_queries, as a SentenceEncoder has, and a func"
    ):
        DocumentCollection.create(folder, lambda texts: texts)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file; give the folder"):
        DocumentCollection.open(tmp_path / "file", LetterEncoder())


def test_a_collection_is_created_by_one_writer_at_a_time(tmp_path):
    with FileLock(tmp_path / "writer.lock"), pytest.raises(ValueError, match="must have one writer at a time"):
        DocumentCollection.create(tmp_path, LetterEncoder(), writer_timeout=0.1)
    assert len(DocumentCollection.create(tmp_path, LetterEncoder())) == 0


def test_a_file_of_texts_without_its_end_is_damaged_whatever_its_size(folder):
    make(folder)
    file = next(folder.glob("*.arrow"))
    content = file.read_bytes()
    for kept in (8, len(content) // 2, len(content) - 100):
        file.write_bytes(content[:kept] + bytes(len(content) - kept))
        with pytest.raises(ValueError, match="truncated or altered"):
            DocumentCollection.open(folder, LetterEncoder())
