"""A write to a collection that fails or is killed leaves the old state or the new one, and no file beside."""

import errno
import json
import signal

import pyarrow as pa
import pytest
from filelock import FileLock

from hf_targets.retrieval.collection import DocumentCollection
from hf_targets.retrieval.collection_state import OURS
from tests.programs import run_program
from tests.retrieval.letter_encoder import OLD, WRITES, LetterEncoder

faiss = pytest.importorskip("faiss")
NEW = {
    "add": {"one": "abba", "three": "dead", "two": "eee", "four": "bad", "five": "ace"},
    "delete": {"two": "cab", "three": "dead"},
    "compact": OLD,
}
KILLED = """
import json, os, signal, sys
from hf_targets.retrieval.collection import DocumentCollection
from tests.retrieval.letter_encoder import WRITES, LetterEncoder

folder, write, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
shelf = DocumentCollection.open(folder, LetterEncoder())
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
count = 0

def kill(event, arguments):
    global count
    writes = arguments[2] & (os.O_WRONLY | os.O_RDWR) if event == "open" else event in CHANGES
    if writes and folder in str(arguments[0]):
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
WRITES[write](shelf)
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "shelf"
    shelf = DocumentCollection.create(folder, LetterEncoder(), shard_size=2)
    shelf.add({**OLD, "zero": "deed"})
    shelf.delete(["zero"])
    return folder


def documents_in(folder):
    return dict(DocumentCollection.open(folder, LetterEncoder()))


def assert_tidy(folder):
    """Check that a folder has the files that its manifest names, and no other."""
    entries = json.loads((folder / "collection.json").read_text())["shards"]
    named = {f"{entry['name']}.{ending}" for entry in entries for ending in ("faiss", "arrow")}
    named |= {entry["deleted"] for entry in entries if entry["deleted"]}
    assert {path.name for path in folder.iterdir()} == {*named, "collection.json", "writer.lock"}
    assert all(OURS.fullmatch(name) for name in named)


@pytest.mark.parametrize("write", WRITES)
def test_a_write_killed_at_any_moment_leaves_the_old_state_or_the_new_one(folder, write):
    seen, moment, ended = [], 1, False
    while not ended:
        done = run_program(KILLED, folder, write, moment)
        ended = done.returncode == 0
        assert ended or done.returncode == -signal.SIGKILL, done.stderr
        seen.append(documents_in(folder))
        assert seen[-1] in (OLD, NEW[write])
        if seen[-1] != OLD or ended:
            shelf = DocumentCollection.open(folder, LetterEncoder())
            shelf.compact(1.0)  # any write removes what was left
            assert_tidy(folder)
            shelf.delete(list(shelf))
            shelf.add({**OLD, "zero": "deed"})
            shelf.delete(["zero"])
        moment += 1
    assert moment > 6 and OLD in seen and seen[-1] == NEW[write]


def full_disk(*given, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_index(index, path):
    path.write_bytes(b"part")
    full_disk()


@pytest.mark.parametrize(
    ("writes", "place", "broken"),
    [
        (("add", "compact"), "hf_targets.retrieval.collection_shards.write_faiss", full_index),
        (("add", "compact"), "hf_targets.retrieval.collection_shards.pa.OSFile", full_disk),
        (("add", "delete"), "pathlib.Path.write_bytes", full_disk),
        (("add", "delete", "compact"), "pathlib.Path.write_text", full_disk),
        (("add", "delete", "compact"), "os.replace", full_disk),
    ],
)
def test_a_full_disk_leaves_the_collection_as_it_was(folder, writes, place, broken, monkeypatch):
    shelf = DocumentCollection.open(folder, LetterEncoder())
    for write in writes:
        with monkeypatch.context() as patch:
            patch.setattr(place, broken)
            with pytest.raises(OSError, match=f"the documents in {folder} stay as they were .*; make room on the disk"):
                WRITES[write](shelf)
        assert dict(shelf) == documents_in(folder) == OLD
        assert_tidy(folder)
    for write in WRITES:
        WRITES[write](shelf)
    assert dict(shelf) == documents_in(folder) == {name: text for name, text in NEW["add"].items() if name != "one"}


def test_an_encoder_that_fails_midway_leaves_the_collection_as_it_was(folder, monkeypatch):
    shelf = DocumentCollection.open(folder, LetterEncoder())
    documents = {f"new {number}": "abc" for number in range(7)}
    encode = LetterEncoder.encode_queries

    def failing(self, texts):
        if len(self.encoded) > 5:
            raise KeyboardInterrupt
        return encode(self, texts)

    with monkeypatch.context() as patch:
        patch.setattr(LetterEncoder, "encode_queries", failing)
        with pytest.raises(KeyboardInterrupt):
            shelf.add(documents)
    assert documents_in(folder) == OLD and len(shelf.encoder.encoded) > 5
    assert_tidy(folder)
    shelf.add(documents)
    assert documents_in(folder) == {**OLD, **documents}


def test_a_second_writer_waits_and_is_then_refused(folder):
    shelf = DocumentCollection.open(folder, LetterEncoder(), writer_timeout=0.1)
    with (
        FileLock(folder / "writer.lock"),
        pytest.raises(ValueError, match=r"and another has been writing to .* for 0.1 seconds"),
    ):
        shelf.delete(["one"])
    shelf.delete(["one"])
    assert "one" not in documents_in(folder)


def test_two_writers_see_what_the_other_wrote(folder):
    first, second = (DocumentCollection.open(folder, LetterEncoder()) for _ in range(2))
    first.add({"four": "a"})
    second.add({"five": "b"})
    with pytest.raises(ValueError, match="an id must be new, and 1 exist, such as 'five'"):
        first.add({"five": "c"})
    assert dict(first) == dict(second) == {**OLD, "four": "a", "five": "b"}


def test_files_of_an_unfinished_write_are_gone_before_the_next_one_needs_space(folder, monkeypatch):
    left = folder / f"shard-{'0' * 32}.faiss"
    left.write_text("part")
    shelf, encode = DocumentCollection.open(folder, LetterEncoder()), LetterEncoder.encode_queries
    assert left.exists(), "readers remove nothing"
    seen = []
    monkeypatch.setattr(
        LetterEncoder, "encode_queries", lambda self, texts: seen.append(left.exists()) or encode(self, texts)
    )
    shelf.add({"new": "text"})
    assert seen == [False]


def test_files_of_others_in_the_folder_stay(folder):
    (folder / "shard-notes.faiss").write_text("mine")
    DocumentCollection.open(folder, LetterEncoder()).compact()
    assert (folder / "shard-notes.faiss").exists()


def test_a_reader_that_meets_a_shard_just_removed_takes_the_next_state(folder, monkeypatch):
    opened = pa.memory_map

    def removing(path):
        monkeypatch.setattr(pa, "memory_map", opened)
        DocumentCollection.open(folder, LetterEncoder()).compact(0.01)
        return opened(path)

    DocumentCollection.open(folder, LetterEncoder()).delete(["one"])
    monkeypatch.setattr(pa, "memory_map", removing)
    assert documents_in(folder) == {"two": "cab", "three": "dead"}


def test_opening_maps_vectors_instead_of_reading_them(tmp_path):
    import psutil

    shelf = DocumentCollection.create(tmp_path / "large", LetterEncoder("abcdefghijklmnop" * 64))
    shelf.add({str(number): "word" for number in range(10_000)})
    del shelf
    before = psutil.Process().memory_info().rss
    large = DocumentCollection.open(tmp_path / "large", LetterEncoder("abcdefghijklmnop" * 64))
    assert psutil.Process().memory_info().rss - before < 4 * 2**20 < 10_000 * 1024 * 4
    assert len(large) == 10_000
