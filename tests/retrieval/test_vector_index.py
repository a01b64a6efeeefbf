"""An index finds the vectors of the highest inner products, or says which part of them it may miss."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.retrieval.vector_index import VectorIndex

faiss = pytest.importorskip("faiss")
faiss.omp_set_num_threads(1)
FACTORIES = ["Flat", "IVF16,Flat", "IVF8,PQ4x4"]
FINGERPRINT = {"encoder": "a1", "vocabulary": "b2"}


def clustered(num_vectors, dim, num_queries):
    """Return vectors in clusters and queries near some of them, in whole numbers: products need no rounding."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(num_vectors // 20, dim, generator=generator)
    own = torch.randint(len(centres), (num_vectors,), generator=generator)
    vectors = centres[own] + 0.3 * torch.randn(num_vectors, dim, generator=generator)
    near = vectors[torch.randint(num_vectors, (num_queries,), generator=generator)]
    return (8 * vectors).round(), (8 * near + torch.randn(num_queries, dim, generator=generator)).round()


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 9)),
    rows=st.integers(0, 5),
    k=st.integers(1, 50),
    probes=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_searches_return_distinct_vectors_with_their_products_and_flat_and_all_lists_the_best(
    shape, rows, k, probes, seed
):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randint(-9, 10, shape, generator=generator).float()
    queries = torch.randint(-9, 10, (rows, shape[1]), generator=generator).float()
    best = (queries @ embeddings.T).topk(min(k, len(embeddings)), dim=1).values
    lists = min(4, len(embeddings))
    factories = [("Flat", None), (f"IVF{lists},Flat", min(probes, lists)), (f"IVF{lists},Flat", lists)]
    for factory, num_probes in factories:
        index = VectorIndex.build(embeddings, factory, num_probes=num_probes)
        scores, numbers = index.search(queries, k)
        assert scores.shape == numbers.shape == best.shape and numbers.dtype == torch.int64
        for query, row, found in zip(queries, scores, numbers, strict=True):
            there = found[found >= 0]
            assert len(set(there.tolist())) == len(there)
            assert torch.equal(row[found >= 0], embeddings[there] @ query)
        if num_probes in (None, lists):
            assert torch.equal(scores, best)


def test_by_distance_the_nearest_are_found_however_many_are_added_at_once(monkeypatch):
    monkeypatch.setattr("hf_targets.retrieval.vector_index._ADDED_AT_ONCE", 7)
    embeddings, queries = clustered(60, 8, 5)
    scores, numbers = VectorIndex.build(embeddings, metric="distance").search(queries, 9)
    expected = torch.cdist(queries, embeddings).square()
    torch.testing.assert_close(scores, expected.topk(9, largest=False).values)
    torch.testing.assert_close(scores, expected.gather(1, numbers))


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_saved_index_finds_bit_for_bit_the_same(factory, tmp_path):
    embeddings, queries = clustered(400, 16, 10)
    index = VectorIndex.build(embeddings, factory, fingerprint=FINGERPRINT)
    index.save(tmp_path / "new" / "folder")
    again = VectorIndex.load(tmp_path / "new" / "folder", fingerprint=FINGERPRINT)
    for before, after in zip(index.search(queries, 25), again.search(queries, 25), strict=True):
        assert torch.equal(before, after)
    assert len(again) == 400 and again.dim == 16


def recall(index, queries, embeddings):
    best = (queries @ embeddings.T).topk(10, dim=1).indices
    return (index.search(queries, 10)[1][:, :, None] == best[:, None]).any(dim=2).double().mean().item()


def test_more_lists_find_more_and_bytes_in_place_of_vectors_find_most():
    generator = torch.Generator().manual_seed(0)
    embeddings, queries = (torch.randn(count, 16, generator=generator) for count in (1000, 50))
    found = [
        recall(VectorIndex.build(embeddings, "IVF16,Flat", num_probes=probes), queries, embeddings)
        for probes in (1, 4, 16)
    ]
    assert found == sorted(found) and 0.1 < found[0] < found[1] < found[2] == 1.0
    assert recall(VectorIndex.build(embeddings, "PQ8x4"), queries, embeddings) > 0.5


def test_threads_may_search_at_once():
    embeddings, queries = clustered(400, 16, 10)
    index = VectorIndex.build(embeddings, "IVF16,Flat")
    expected = index.search(queries, 5)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: index.search(queries, 5), range(16)):
            assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("ending", ["json", "faiss"])
@pytest.mark.parametrize("length", [None, 0, 60, -10])
def test_a_damaged_index_is_refused_by_name(length, ending, tmp_path):
    VectorIndex.build(torch.randn(50, 4), "IVF2,Flat").save(tmp_path)
    file = tmp_path / f"vector_index.{ending}"
    content = file.read_bytes()
    file.unlink()
    if length is not None:
        file.write_bytes(content[:length])
    with pytest.raises(ValueError, match=r"vector_index\.json"):
        VectorIndex.load(tmp_path)


@pytest.mark.parametrize("asked", [{"encoder": "a1", "vocabulary": "c3"}, {"encoder": "a1"}, None])
def test_an_index_of_another_encoder_or_vocabulary_is_refused(asked, tmp_path):
    VectorIndex.build(torch.randn(50, 4), fingerprint=FINGERPRINT).save(tmp_path)
    with pytest.raises(ValueError, match="vocabulary"):
        VectorIndex.load(tmp_path, fingerprint=asked)


def test_a_save_that_fails_leaves_the_saved_index_and_nothing_more(tmp_path, monkeypatch):
    first = VectorIndex.build(torch.randn(50, 4))
    first.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("json.dumps", lambda *given, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        VectorIndex.build(torch.randn(60, 4)).save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (lambda: VectorIndex.build(torch.zeros(0, 4)), "need a vector"),
        (lambda: VectorIndex.build(torch.zeros(4)), "float matrix"),
        (lambda: VectorIndex.build(torch.eye(3), "Nope"), "Nope"),
        (lambda: VectorIndex.build(torch.tensor([[1.0, torch.nan]])), "finite"),
        (lambda: VectorIndex.build(torch.eye(3)).search(torch.zeros(1, 4), 1), "width 3"),
        (lambda: VectorIndex.build(torch.eye(3)).search(torch.zeros(1, 3), 0), "k be 1"),
        (lambda: VectorIndex.build(torch.eye(3)).search(torch.zeros(1, 3, dtype=torch.int64), 1), "float matrix"),
    ],
)
def test_bad_values_are_refused(act, word):
    with pytest.raises(ValueError, match=word):
        act()


def test_half_precision_is_searched_in_float32_on_the_device_of_the_queries():
    scores, numbers = VectorIndex.build(torch.eye(4).bfloat16()).search(torch.eye(4).half(), 1)
    assert scores.dtype == torch.float32 and numbers.flatten().tolist() == [0, 1, 2, 3]
