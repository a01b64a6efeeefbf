"""An index on disk: merged from shards as built at once, resumed, refused where it cannot serve."""

import os
import shutil

import numpy as np
import pytest
import torch

from hf_targets import DiskIndex, DiskIndexBuilder
from hf_targets.retrieval import disk_index
from hf_targets.retrieval import disk_index_builder as module
from hf_targets.retrieval.query_fit import QueryFit
from tests.retrieval.vector_engines import LISTS, brute_force, whole_numbers

faiss = pytest.importorskip("faiss")
faiss.omp_set_num_threads(1)
VECTORS, QUERIES = whole_numbers(300, 8), whole_numbers(20, 8, seed=1)
SIZES = [120, 7, 173]  # FAISS's own shift of numbers fails for unequal ones


def trained(folder, factory=LISTS, vectors=VECTORS, **how):
    return DiskIndexBuilder.train(folder, vectors, factory, **how)


def filled(folder, **how):
    builder = trained(folder, **how)
    for shard, part in reversed(list(enumerate(VECTORS.split(SIZES)))):
        builder.fill(shard, iter(part.split(50)))
    return builder


def found(folder, **how):
    return DiskIndex.load(folder, **how).search(QUERIES, 20)


@pytest.mark.parametrize("metric", ["inner_product", "distance"])
@pytest.mark.parametrize("factory", ["IVF4,Flat", "IVF4,PQ4x2", "Pad12,IVF4,PQ6x2"])
def test_shards_that_are_merged_are_the_index_built_at_once(factory, metric, tmp_path):
    filled(tmp_path / "shards", factory=factory, metric=metric, num_probes=2).merge(3)
    DiskIndex.build(VECTORS, factory, folder=tmp_path / "whole", metric=metric, num_probes=2)
    merged, whole = (DiskIndex.load(tmp_path / name) for name in ("shards", "whole"))
    assert np.array_equal(merged.vectors, whole.vectors)
    for k in (1, 20):
        for one, other in zip(merged.search(QUERIES, k), whole.search(QUERIES, k), strict=True):
            assert torch.equal(one, other)
    assert not list((tmp_path / "shards").glob("shard-*"))


def test_more_lists_and_candidates_find_more_until_all_are_found(tmp_path):
    vectors, queries = (torch.randn(count, 16, generator=torch.Generator().manual_seed(0)) for count in (1000, 50))
    DiskIndex.build(vectors, "IVF16,PQ4x2", folder=tmp_path)
    best = brute_force(queries, vectors.half(), "inner_product").topk(10, dim=1).indices
    recalls = []
    for num_probes, num_candidates in ((1, 1), (4, 1), (4, 10), (16, 10), (16, 100)):
        numbers = DiskIndex.load(tmp_path, num_probes=num_probes, num_candidates=num_candidates).search(queries, 10)[1]
        recalls.append((numbers[:, :, None] == best[:, None]).any(dim=2).double().mean().item())
    assert recalls == sorted(set(recalls)) and recalls[-1] == 1.0


def test_where_the_lists_hold_fewer_the_last_numbers_are_below_0(tmp_path):
    DiskIndex.build(VECTORS, LISTS, folder=tmp_path, num_probes=1)
    scores, numbers = DiskIndex.load(tmp_path).search(QUERIES, 290)
    assert (numbers[:, -1] == -1).all() and torch.equal(scores == -torch.inf, numbers == -1)
    assert torch.equal(numbers < 0, (numbers < 0).cummax(dim=1).values)


@pytest.mark.parametrize("metric", ["inner_product", "distance"])
def test_without_an_index_all_vectors_are_compared_however_many_at_once(metric, monkeypatch):
    expected = brute_force(QUERIES, VECTORS, metric).topk(9, dim=1, largest=metric == "inner_product").values
    for vectors_at_once, queries_at_once, numbers_at_once in ((7, 3, 50), (300, 20, 1 << 20)):
        monkeypatch.setattr(disk_index, "_VECTORS_AT_ONCE", vectors_at_once)
        monkeypatch.setattr(disk_index, "_QUERIES_AT_ONCE", queries_at_once)
        monkeypatch.setattr(disk_index, "_NUMBERS_AT_ONCE", numbers_at_once)
        scores, numbers = DiskIndex(VECTORS.half().numpy(), metric=metric).search(QUERIES, 9)
        assert torch.equal(scores.double(), expected)
        assert torch.equal(brute_force(QUERIES, VECTORS, metric).gather(1, numbers), expected)


def test_a_moved_index_and_a_shard_alone_are_searched(tmp_path):
    builder = filled(tmp_path / "here", num_probes=4)
    alone = found(builder.shard_folder(2), num_candidates=100)
    builder.merge(3, keep_shards=True)
    whole = found(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert all(map(torch.equal, found(tmp_path / "there"), whole))
    every = brute_force(QUERIES, VECTORS[-SIZES[2] :], "inner_product")
    assert torch.equal(alone[0].double(), every.topk(20, dim=1).values)


def test_a_build_that_was_broken_off_anywhere_goes_on_and_ends_as_one_build(tmp_path, monkeypatch):
    filled(tmp_path / "whole").merge(3)
    expected, replace = found(tmp_path / "whole"), os.replace
    for last in range(2 + 3 * 3 + 4):
        moves = iter(range(100))
        monkeypatch.setattr(os, "replace", lambda *names: replace(*names) if next(moves) < last else 1 / 0)  # noqa: B023
        with pytest.raises(ZeroDivisionError):
            filled(tmp_path / str(last)).merge(3)
        with pytest.raises(ValueError, match=r"disk_index\.json is missing"):
            found(tmp_path / str(last))
        monkeypatch.setattr(os, "replace", replace)
        filled(tmp_path / str(last)).merge(3)
        assert all(map(torch.equal, found(tmp_path / str(last)), expected))
        assert sorted(path.name for path in (tmp_path / str(last)).iterdir()) == sorted(
            path.name for path in (tmp_path / "whole").iterdir()
        )


def test_a_filled_shard_is_left_and_one_that_fails_leaves_nothing(tmp_path):
    builder = trained(tmp_path)
    builder.fill(1, VECTORS[:9])
    before = {path: path.stat().st_mtime_ns for path in builder.shard_folder(1).iterdir()}
    builder.fill(1, VECTORS)
    assert {path: path.stat().st_mtime_ns for path in builder.shard_folder(1).iterdir()} == before
    with pytest.raises(ValueError, match="finite in float16"):
        builder.fill(0, [VECTORS, VECTORS * 1e5])
    assert builder.filled == [1] and not list(builder.shard_folder(0).iterdir())


@pytest.mark.parametrize("name", ["vectors.f16", "index.faiss", "lists.ivfdata", "disk_index.json"])
@pytest.mark.parametrize("length", [None, 0, 30])
def test_a_damaged_index_is_refused_by_name(name, length, tmp_path):
    DiskIndex.build(VECTORS, LISTS, folder=tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if length is not None:
        (tmp_path / name).write_bytes(content[:length])
    with pytest.raises(ValueError, match=r"damaged"):
        DiskIndex.load(tmp_path)


def with_other_lists(path):
    builder = filled(path)
    shutil.rmtree(path / "shard-00001")
    trained(path / "other", vectors=VECTORS.flip(0) + 1).fill(1, VECTORS[:7])
    shutil.move(path / "other" / "shard-00001", path)
    builder.merge(3)


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (lambda path: trained(path, vectors=VECTORS[:155]), "learns from 156 vectors"),
        (lambda path: trained(path, "IVF2,PQ4"), "learns from 9984 vectors"),
        (lambda path: trained(path, "PQ4x2"), "needs lists"),
        (lambda path: trained(path, "IVF4,PQ4x4fs"), "lists of plain codes"),
        (lambda path: trained(path, "IVF4,PQ3x2"), "one of FAISS"),
        (lambda path: trained(path, vectors=VECTORS / 0), "finite"),
        (lambda path: trained(path, queries=VECTORS[:, :3]), "vectors' width 8"),
        (lambda path: trained(path, queries=VECTORS * 0), "not be 0"),
        (lambda path: trained(path, queries=VECTORS, metric="distance"), "by inner products"),
        (lambda path: (trained(path), trained(path, "IVF2,PQ4x2")), "another factory"),
        (lambda path: (trained(path), trained(path, fingerprint={"encoder": "b"})), "another encoder"),
        (lambda path: [DiskIndex.build(VECTORS, LISTS, folder=path) for _ in range(2)], "has an index already"),
        (
            lambda path: (trained(path).fill(0, VECTORS[:9]), DiskIndex.build(VECTORS, LISTS, folder=path)),
            "of other vectors",
        ),
        (lambda path: DiskIndexBuilder(path), "missing or damaged"),
        (lambda path: trained(path).fill(0, VECTORS[:, :3]), "width 8"),
        (lambda path: trained(path).fill(0, []), "needs a vector"),
        (lambda path: filled(path).merge(5), "lacks shard-00003, shard-00004"),
        (lambda path: with_other_lists(path), "shard-00001 was filled with other lists"),
    ],
)
def test_what_cannot_serve_is_refused(act, word, tmp_path):
    with pytest.raises(ValueError, match=word):
        act(tmp_path / "index")


def test_a_disk_without_room_for_the_merged_index_is_told_before_and_keeps_the_shards(tmp_path, monkeypatch):
    builder = filled(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(module.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 90, 10))
        with pytest.raises(OSError, match="has 10; free space"):
            builder.merge(3)
    assert builder.filled == [0, 1, 2]
    builder.merge(3)


def skewed(count, dim=16, seed=0):
    """Return rows that vary most along a few directions, around a mean."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([4.0] * 3 + [0.1] * (dim - 3))
    return scales * torch.randn(count, dim, generator=generator) + scales * 2


def test_an_index_fitted_to_queries_finds_more_and_with_all_lists_and_candidates_the_best(tmp_path):
    vectors, queries = torch.randn(2000, 16, generator=torch.Generator().manual_seed(1)), skewed(60, seed=2)
    DiskIndex.build(vectors, "Pad20,IVF16,PQ5x4", folder=tmp_path / "plain")
    builder = trained(tmp_path / "fitted", "Pad20,IVF16,PQ5x4", vectors, queries=skewed(500))
    for shard, part in enumerate(vectors.split(1100)):
        builder.fill(shard, part)
    alone = DiskIndex.load(builder.shard_folder(1), num_probes=16, num_candidates=300).search(queries, 10)
    builder.merge(2)
    every = brute_force(queries, vectors.half(), "inner_product")
    best = every.topk(10, dim=1)

    def recall(name, **how):
        numbers = DiskIndex.load(tmp_path / name, **how).search(queries, 10)[1]
        return (numbers[:, :, None] == best.indices[:, None]).any(dim=2).double().mean().item()

    assert recall("fitted", num_probes=8, num_candidates=4) > recall("plain", num_probes=8, num_candidates=4) + 0.1
    assert recall("fitted", num_probes=16, num_candidates=300) == 1.0
    torch.testing.assert_close(alone[0].double(), every[:, 1100:].topk(10, dim=1).values, rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="another fitted"):
        trained(tmp_path / "fitted", "Pad20,IVF16,PQ5x4", vectors)


def test_a_fit_keeps_inner_products_and_gives_vectors_one_length():
    vectors, queries = skewed(300, seed=1), skewed(50, seed=2)
    fit = QueryFit.of(queries, vectors)
    fitted = fit.of_vectors(vectors)
    torch.testing.assert_close(fit.of_queries(queries) @ fitted.T, queries @ vectors.T, rtol=1e-4, atol=1e-3)
    assert (fitted.norm(dim=1) / fit.square**0.5 - 1).abs().lt(1e-4).double().mean() >= 0.99


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not tell what is mapped")
def test_no_file_of_a_shard_stays_mapped_after_the_merger_nor_rows_of_vectors_after_a_search(tmp_path):
    filled(tmp_path).merge(3)
    index = DiskIndex.load(tmp_path)
    index.search(QUERIES, 20)
    with open("/proc/self/smaps", encoding="utf-8") as file:
        told = file.read()
    assert f"{tmp_path}/shard-" not in told and f"{tmp_path}/lists.ivfdata" in told
    of_vectors = told[told.index(f"{tmp_path}/vectors.f16") :]
    assert of_vectors[of_vectors.index("Rss:") :].split()[1] == "0"
