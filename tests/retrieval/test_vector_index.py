import json
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.retrieval.vector_index import VectorIndex
from tests.choices import assert_clear

faiss = pytest.importorskip("faiss")
faiss.omp_set_num_threads(1)
MODES = [{"mode": "exact"}, {"mode": "ivf", "num_lists": 20, "num_probes": 3}]
in_both_modes = pytest.mark.parametrize("mode", MODES, ids=["exact", "ivf"])
FINGERPRINT = {"encoder": "a1", "vocabulary": "b2"}


def clustered(num_vectors, dim, num_queries, seed=0):
    """Return vectors in clusters of 20, which share a vector and differ in length, and queries that point near some."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(num_vectors // 20, dim, generator=generator)
    own = torch.randint(len(centres), (num_vectors,), generator=generator)
    vectors = centres[own] + 0.3 * torch.randn(num_vectors, dim, generator=generator) + 2.0
    vectors *= torch.exp(0.2 * torch.randn(num_vectors, 1, generator=generator))
    near = vectors[torch.randint(num_vectors, (num_queries,), generator=generator)] - 2.0
    return vectors, near + 0.1 * torch.randn(num_queries, dim, generator=generator)


def whole_numbers(num_vectors, dim, num_queries):
    """Return such vectors and queries in whole numbers, whose products need no rounding."""
    vectors, queries = clustered(num_vectors, dim, num_queries)
    return vectors.mul(8).round(), queries.mul(8).round()


def products(queries, embeddings, numbers):
    return torch.einsum("rd,rkd->rk", queries.double(), embeddings.double()[numbers]).float()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_vectors=st.integers(1, 60),
    rows=st.integers(0, 5),
    dim=st.integers(1, 9),
    k=st.integers(1, 70),
    share=st.floats(0.01, 1.0),
    duplicates=st.booleans(),
    seed=st.integers(0, 99),
)
def test_searches_return_distinct_vectors_with_their_products_and_all_lists_the_best(
    num_vectors, rows, dim, k, share, duplicates, seed
):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(num_vectors, dim, generator=generator)
    if duplicates:
        embeddings = embeddings[torch.randint(num_vectors, (num_vectors,), generator=generator)]
    queries = torch.randn(rows, dim, generator=generator)
    num_lists = max(1, round(share * num_vectors))
    exact = VectorIndex.build(embeddings)
    lists = VectorIndex.build(embeddings, mode="ivf", num_lists=num_lists, num_probes=1)
    best = (queries @ embeddings.T).topk(min(k, num_vectors), dim=1).values
    for index, probes in ((exact, None), (lists, None), (lists, num_lists)):
        scores, numbers = index.search(queries, k, num_probes=probes)
        assert scores.shape == numbers.shape == best.shape and numbers.dtype == torch.int64
        assert all(len(set(row)) == len(row) and set(row) <= set(range(num_vectors)) for row in numbers.tolist())
        torch.testing.assert_close(scores, products(queries, embeddings, numbers))
        assert (scores.diff(dim=1) <= 0).all()
        if index is exact or probes == num_lists:
            torch.testing.assert_close(scores, best)


def test_the_exact_top_k_is_that_of_the_whole_product_over_several_blocks(monkeypatch):
    monkeypatch.setattr("hf_targets.retrieval.exact_search._QUERIES_AT_ONCE", 3)
    monkeypatch.setattr("hf_targets.retrieval.exact_search.ROWS_AT_ONCE", 16)
    embeddings, queries = clustered(100, 8, 10)
    expected = (queries @ embeddings.T).topk(40, dim=1)
    assert (expected.values.diff(dim=1) < -1e-5).all()  # so that rounding changes no order
    scores, numbers = VectorIndex.build(embeddings).search(queries, 40)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(numbers, expected.indices)


def test_a_few_lists_find_what_stands_together_though_all_share_a_vector_and_lengths_differ():
    embeddings, queries = clustered(8000, 32, 50)
    index = VectorIndex.build(embeddings, mode="ivf")
    assert index.recall(queries, 10) > 0.9
    found = [index.recall(queries, 10, num_probes=probes) for probes in (1, 4, 32, index.num_lists)]
    assert found == sorted(found) and found[0] < 1.0 and found[-1] == 1.0


def test_recall_is_the_share_of_the_whole_products_top_k():
    embeddings, queries = clustered(500, 16, 20)
    index = VectorIndex.build(embeddings, mode="ivf", num_lists=25, num_probes=1)
    scores = queries @ embeddings.T
    assert_clear(scores, 30)
    best = scores.topk(30, dim=1).indices
    numbers = index.search(queries, 30)[1]
    common = [len({*ours} & {*theirs}) / 30 for ours, theirs in zip(numbers.tolist(), best.tolist(), strict=True)]
    assert 0.0 < sum(common) / 20 < 1.0
    assert index.recall(queries, 30) == pytest.approx(sum(common) / 20)
    assert VectorIndex.build(embeddings).recall(queries, 30) == 1.0


def test_equals_at_the_last_rank_do_not_lower_the_recall():
    embeddings = torch.randn(4, 6).repeat(50, 1)
    index = VectorIndex.build(embeddings, mode="ivf", num_lists=4, num_probes=1)
    assert index.recall(embeddings[:4].div(embeddings[:4].norm(dim=1, keepdim=True)), 200) == 1.0


@in_both_modes
def test_a_saved_index_finds_bit_for_bit_the_same(mode, tmp_path):
    embeddings, queries = whole_numbers(400, 16, 10)
    index = VectorIndex.build(embeddings, fingerprint=FINGERPRINT, **mode)
    index.save(tmp_path / "new" / "folder")
    again = VectorIndex.load(tmp_path / "new" / "folder", fingerprint=FINGERPRINT)
    for before, after in zip(index.search(queries, 25), again.search(queries, 25), strict=True):
        assert torch.equal(before, after)
    names = ("mode", "dim", "num_lists", "num_probes", "num_bytes", "fingerprint")
    assert [getattr(index, name) for name in names] == [getattr(again, name) for name in names]
    assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == [
        "vector_index.faiss",
        "vector_index.json",
    ]


@in_both_modes
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:90] + b"?" + data[91:], lambda _: b""])
def test_a_damaged_index_is_refused_by_name(mode, damage, tmp_path):
    VectorIndex.build(torch.randn(50, 4), **mode).save(tmp_path)
    file = tmp_path / "vector_index.faiss"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"vector_index\.faiss is truncated or altered"):
        VectorIndex.load(tmp_path)


@pytest.mark.parametrize("file", ["vector_index.faiss", "vector_index.json"])
def test_a_missing_file_is_refused_by_name(file, tmp_path):
    VectorIndex.build(torch.randn(50, 4)).save(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(ValueError, match=f"{file} is missing"):
        VectorIndex.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"vector_index\.json must be of version 1, got 2"),
        ({"dim": 5}, r"vector_index\.json is altered"),
        ({"count": 51}, r"vector_index\.json is altered"),
        ({"mode": "exact"}, r"vector_index\.json is altered"),
        ({"num_probes": 21}, r"vector_index\.json is altered"),
        ({"num_probes": None}, r"vector_index\.json is altered"),
        ({"fingerprint": None}, r"vector_index\.json is altered"),
        ({"sha256": "0"}, r"vector_index\.faiss is truncated or altered"),
    ],
)
def test_altered_settings_are_refused_by_name(change, message, tmp_path):
    VectorIndex.build(torch.randn(50, 4), **MODES[1]).save(tmp_path)
    file = tmp_path / "vector_index.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, **change}))
    with pytest.raises(ValueError, match=message):
        VectorIndex.load(tmp_path)
    for text in (file.read_text()[:20], "[]", "{}", json.dumps({"version": 1})):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"vector_index\.json"):
            VectorIndex.load(tmp_path)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"encoder": "a1", "vocabulary": "c3"}, "vocabulary 'b2', and not 'c3'"),
        ({"encoder": "a1"}, "vocabulary 'b2', and not None"),
        (None, "encoder 'a1', and not None; vocabulary 'b2', and not None"),
    ],
)
def test_an_index_of_another_encoder_or_vocabulary_is_refused_with_both_values(asked, told, tmp_path):
    VectorIndex.build(torch.randn(50, 4), fingerprint=FINGERPRINT).save(tmp_path)
    with pytest.raises(ValueError, match=told):
        VectorIndex.load(tmp_path, fingerprint=asked)


@contextmanager
def largest_file(num_bytes):
    """Let no file of this process become longer, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_failed_save_leaves_the_saved_index_and_nothing_more(tmp_path):
    embeddings, queries = whole_numbers(100, 4, 3)
    index = VectorIndex.build(embeddings)
    index.save(tmp_path)
    size = (tmp_path / "vector_index.faiss").stat().st_size
    with largest_file(size - 3), pytest.raises(OSError, match="File too large"):
        VectorIndex.build(-embeddings).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(VectorIndex.load(tmp_path).search(queries, 1)[0], index.search(queries, 1)[0])


@in_both_modes
def test_threads_find_what_each_would_alone(mode):
    embeddings, queries = clustered(1000, 16, 40)
    index = VectorIndex.build(embeddings, **mode)
    probes = [None, None] if mode["mode"] == "exact" else [1, 20]
    alone = [[index.search(row, 30, num_probes=count) for row in queries[:, None]] for count in probes]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            jobs = [
                [pool.submit(index.search, row, 30, num_probes=count) for count in probes] for row in queries[:, None]
            ]
            for row, pair in enumerate(jobs):
                for thread, job in enumerate(pair):
                    scores, numbers = job.result()
                    assert torch.equal(scores, alone[thread][row][0]) and torch.equal(numbers, alone[thread][row][1])


@in_both_modes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types_are_taken_as_float32(mode, dtype):
    embeddings, queries = whole_numbers(200, 8, 5)
    embeddings, queries = embeddings.to(dtype), queries.to(dtype)
    scores, numbers = VectorIndex.build(embeddings, **mode).search(queries, 9)
    expected, found = VectorIndex.build(embeddings.float(), **mode).search(queries.float(), 9)
    assert scores.dtype == torch.float32 and torch.equal(scores, expected) and torch.equal(numbers, found)


@in_both_modes
def test_autocast_and_gradients_change_nothing(mode):
    embeddings, queries = clustered(200, 8, 5)
    index = VectorIndex.build(embeddings.requires_grad_(), **mode)
    expected = index.search(queries, 9)[0]
    with torch.autocast("cpu", torch.bfloat16):
        scores = index.search(queries.requires_grad_(), 9)[0]
    assert torch.equal(scores, expected) and not scores.requires_grad


@in_both_modes
def test_an_index_is_a_copy_of_the_embeddings(mode):
    embeddings, queries = clustered(200, 8, 5)
    index = VectorIndex.build(embeddings, **mode)
    expected = index.search(queries, 9)[0]
    embeddings.zero_()
    assert torch.equal(index.search(queries, 9)[0], expected)


@in_both_modes
def test_num_bytes_is_about_the_size_of_the_file(mode, tmp_path):
    index = VectorIndex.build(torch.randn(2000, 32), **mode)
    index.save(tmp_path)
    assert index.num_bytes == pytest.approx((tmp_path / "vector_index.faiss").stat().st_size, rel=0.01)
    assert len(index) == 2000 and index.dim == 32


def test_the_same_seed_gives_the_same_lists():
    embeddings, queries = clustered(500, 16, 20)
    first, second = (VectorIndex.build(embeddings, mode="ivf", seed=3) for _ in range(2))
    assert torch.equal(first.search(queries, 30)[1], second.search(queries, 30)[1])


@pytest.mark.parametrize(
    ("embeddings", "arguments", "message"),
    [
        (torch.randn(5), {}, r"embeddings must be a float matrix, got torch.float32 of shape \(5,\)"),
        (torch.ones(5, 2, dtype=torch.int64), {}, "must be a float matrix, got torch.int64"),
        (torch.empty(0, 4), {}, r"need a vector and a dimension, got shape \(0, 4\)"),
        (torch.empty(4, 0), {}, r"need a vector and a dimension, got shape \(4, 0\)"),
        (torch.tensor([[0.0], [float("nan")]]), {}, "NaN or infinity in row 1"),
        (torch.tensor([[0.0], [float("inf")]]), {}, "NaN or infinity in row 1"),
        (torch.randn(5, 2), {"mode": "hnsw"}, "mode must be 'exact' or 'ivf', got 'hnsw'"),
        (torch.randn(5, 2), {"num_lists": 2}, "mode='exact' has no lists, got num_lists=2"),
        (torch.randn(5, 2), {"mode": "ivf", "num_lists": 6}, r"num_lists must be in \[1, 5\] for 5 vectors, got 6"),
        (torch.randn(5, 2), {"mode": "ivf", "num_lists": 2, "num_probes": 3}, r"num_probes must be in \[1, 2\]"),
    ],
)
def test_bad_embeddings_and_settings_are_refused(embeddings, arguments, message):
    with pytest.raises(ValueError, match=message):
        VectorIndex.build(embeddings, **arguments)


@pytest.mark.parametrize(
    ("hidden", "k", "num_probes", "message"),
    [
        (torch.randn(2, 3), 1, None, r"as wide as the index, 4, got shape \(2, 3\)"),
        (torch.randn(4), 1, None, "queries must be a float matrix"),
        (torch.full((2, 4), float("nan")), 1, None, "queries must be finite, got NaN or infinity in row 0"),
        (torch.full((2, 4), 3e38), 1, None, "inner products must be finite in float32"),
        (torch.randn(2, 4), 0, None, "k must be an integer, 1 or more, got 0"),
        (torch.randn(2, 4), 1, 21, r"num_probes must be in \[1, 20\], got 21"),
    ],
)
def test_bad_queries_are_refused(hidden, k, num_probes, message):
    with pytest.raises(ValueError, match=message):
        VectorIndex.build(torch.full((50, 4), -9.0), **MODES[1]).search(hidden, k, num_probes=num_probes)


def test_probes_of_an_exact_index_and_recall_without_queries_are_refused():
    index = VectorIndex.build(torch.randn(5, 4))
    with pytest.raises(ValueError, match="no lists to probe"):
        index.search(torch.randn(2, 4), 1, num_probes=1)
    with pytest.raises(ValueError, match="recall needs a query"):
        index.recall(torch.empty(0, 4), 1)


@in_both_modes
def test_any_integer_is_a_number_of_results_and_products_must_be_finite(mode):
    embeddings, queries = clustered(1000, 16, 40)
    index = VectorIndex.build(embeddings, **mode)
    assert index.search(queries, np.int64(3))[1].equal(index.search(queries, 3)[1])
    for wrong in (True, 2.5):
        with pytest.raises(ValueError, match=f"k must be an integer, 1 or more, got {wrong}"):
            index.search(queries, wrong)
    with pytest.raises(ValueError, match="queries must be a float matrix, got list"):
        index.search(queries.tolist(), 3)
    with pytest.raises(ValueError, match="inner products must be finite in float32"):
        index.search(torch.full((1, 16), 3e38), 3)
