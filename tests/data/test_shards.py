"""Shards: files that tell their settings, and what is said where Ray cannot be reached. Without Ray."""

import socket
import time

import pyarrow as pa
import pytest

from hf_targets.data.shard_files import ShardFiles
from hf_targets.data.shards import run_shards

SIZES = {0: 3, 1: 3, 2: 1}


def batch(*values):
    return pa.record_batch([pa.array(values, pa.int64())], ["value"])


def test_a_shard_is_read_as_it_was_written_whole_or_in_parts(tmp_path):
    files = ShardFiles(tmp_path, "some", {"size": 3, "names": ("a", "b")})
    files.write(1, [batch(1, 2), batch(), batch(3)])
    assert files.read(1)["value"].to_pylist() == [1, 2, 3]
    assert [files.read_part(1, part)["value"].to_pylist() for part in range(3)] == [[1, 2], [], [3]]
    assert files.missing(SIZES) == {0: 3, 2: 1}


def test_shards_of_different_settings_and_damaged_ones_are_refused_and_told_apart(tmp_path):
    files = ShardFiles(tmp_path, "some", {"words": 3, "text": "a"})
    files.write(0, [batch(1)])
    with pytest.raises(ValueError, match="of another words; give another folder"):
        ShardFiles(tmp_path, "some", {"words": 4, "text": "a"}).missing(SIZES)
    files.path(1).write_bytes(files.path(0).read_bytes()[:40])
    with pytest.raises(ValueError, match=r"some-00001\.arrow is missing or damaged"):
        files.missing(SIZES)


def test_a_cluster_that_cannot_be_reached_is_told_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        start = time.monotonic()
        with pytest.raises(ConnectionError, match=f"{address}.*ray start --head"):
            list(run_shards(int, SIZES, workers=2, description="trying", unit="row"))
        assert time.monotonic() - start < 60
    with pytest.raises(ValueError, match="workers must be 1 or more"):
        list(run_shards(int, SIZES, workers=0, description="trying", unit="row"))
