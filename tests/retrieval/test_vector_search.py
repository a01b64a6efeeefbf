"""Every engine finds what brute force finds, refuses what another encoder made, and shards are the whole."""

import logging
import os
import signal
from functools import partial

import pytest
import torch

from hf_targets import ShardedIndex, VectorIndex
from tests.retrieval.vector_engines import ENGINES, MODULES, brute_force, build_shards, whole_numbers

faiss = pytest.importorskip("faiss")
faiss.omp_set_num_threads(1)
FINGERPRINT = {"encoder": "a1", "phrases": "b2"}
METRICS = ["inner_product", "distance"]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    pytest.importorskip(MODULES.get(request.param, "faiss"))
    return ENGINES[request.param]


@pytest.mark.parametrize("metric", METRICS)
def test_every_engine_finds_what_brute_force_in_float64_finds(engine, metric, tmp_path):
    build, load = engine
    embeddings, queries = whole_numbers(170, 8), whole_numbers(70, 8, seed=1)
    build(embeddings, tmp_path / "store", metric=metric, fingerprint=FINGERPRINT)
    index = load(tmp_path / "store", fingerprint=FINGERPRINT)
    every = brute_force(queries, embeddings, metric)
    assert len(index) == 170 and index.dim == 8 and index.metric == metric and index.fingerprint == FINGERPRINT
    for k in (1, 30, 1000):
        scores, numbers = index.search(queries.half(), k)
        best = every.topk(min(k, 170), dim=1, largest=metric == "inner_product").values
        assert scores.dtype == torch.float32 and numbers.dtype == torch.int64
        assert torch.equal(every.gather(1, numbers), best)
        torch.testing.assert_close(scores, best.float())  # Qdrant's are squared roots
        assert all(len(set(row)) == len(row) for row in numbers.tolist())
    assert [tuple(found.shape) for found in index.search(queries[:0], 3)] == [(0, 3), (0, 3)]
    for bad, k, word in ((queries[:, :3], 1, "width 8"), (queries, 0, "k be 1"), (queries / 0, 1, "finite")):
        with pytest.raises(ValueError, match=word):
            index.search(bad, k)


def test_a_store_of_another_encoder_is_refused(engine, tmp_path):
    build, load = engine
    build(whole_numbers(170, 8), tmp_path / "store", fingerprint=FINGERPRINT)
    with pytest.raises(ValueError, match="another encoder"):
        load(tmp_path / "store", fingerprint={**FINGERPRINT, "encoder": "c3"})


def test_what_is_not_there_and_what_holds_no_vector_is_refused(engine, tmp_path):
    build, load = engine
    with pytest.raises(ValueError, match=r"missing|not a|no index"):
        load(tmp_path / "none", fingerprint=FINGERPRINT)
    with pytest.raises(ValueError, match=r"need a vector|vectors or more"):
        build(torch.zeros(0, 8), tmp_path / "store")
    with pytest.raises(ValueError, match="finite"):
        build(torch.full((170, 8), torch.nan), tmp_path / "store")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    build_shards(whole_numbers(170, 8), folder, fingerprint=FINGERPRINT)
    with ShardedIndex.load(folder, fingerprint=FINGERPRINT, num_candidates=1000) as index:
        yield index


def test_a_killed_process_of_a_shard_is_replaced(shards, caplog):
    queries = whole_numbers(5, 8, seed=1)
    expected = shards.search(queries, 20)
    os.kill(shards._shards[1]._process.pid, signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        found = shards.search(queries, 20)
    assert all(map(torch.equal, found, expected)) and "exit code -9" in caplog.text


def test_shards_that_differ_or_cannot_be_opened_are_refused_and_leave_no_process(tmp_path):
    for number, dim in enumerate((4, 5)):
        VectorIndex.build(torch.eye(dim)).save(tmp_path / str(number))
    openers = [partial(VectorIndex.load, tmp_path / name) for name in ("0", "1")]
    with pytest.raises(ValueError, match="shards must have one width"):
        ShardedIndex(openers)
    with pytest.raises(ValueError, match="missing or damaged"):
        ShardedIndex([partial(VectorIndex.load, tmp_path / "none")])
    with pytest.raises(ValueError, match="needs a shard"):
        ShardedIndex([])


class FailsAt13(VectorIndex):
    """An index of the unit vectors that finds anything but 13."""

    def __init__(self, dim):
        super().__init__(VectorIndex.build(torch.eye(dim)).index, {})

    def search(self, queries, k):
        return super().search(queries, k) if k != 13 else 1 / 0


def test_an_error_of_a_shard_is_the_searchs_the_next_search_is_right_and_a_closed_index_says_so():
    with ShardedIndex([partial(FailsAt13, 5), partial(VectorIndex.build, torch.eye(5))]) as index:
        with pytest.raises(ZeroDivisionError):
            index.search(torch.eye(5), 13)
        scores, numbers = index.search(torch.eye(5), 3)
        process = index._shards[0]._process
    assert (scores == torch.tensor([1.0, 1.0, 0.0])).all()
    assert (numbers[:, :2].sort(dim=1).values == torch.tensor([0, 5]) + torch.arange(5)[:, None]).all()
    assert process.exitcode == 0
    with pytest.raises(RuntimeError, match="closed"):
        index.search(torch.eye(5), 1)
