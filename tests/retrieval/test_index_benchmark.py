import torch

from hf_targets.retrieval.index_benchmark import clustered_embeddings, compare_indexes, format_index_speeds


def test_every_way_is_measured_and_those_that_look_everywhere_find_everything():
    embeddings, queries = clustered_embeddings(600, 16, 8)
    speeds = compare_indexes(embeddings, queries, 5, (0.5, 1.0))
    assert [speed.recall for speed in speeds if "of" not in speed.name] == [1.0, 1.0]
    half, everywhere = speeds[-2:]
    assert half.recall <= everywhere.recall
    assert everywhere.recall == 1.0
    assert all(speed.num_bytes >= embeddings.nbytes for speed in speeds)
    assert len(format_index_speeds(speeds).splitlines()) == 2 + len(speeds)


def test_clusters_are_near_their_queries_and_the_same_for_the_same_seed():
    embeddings, queries = clustered_embeddings(640, 32, 4, cluster_size=64)
    scores = queries @ embeddings.T
    assert (scores.max(dim=1).values > scores.mean(dim=1) + 3 * scores.std(dim=1)).all()
    again, _ = clustered_embeddings(640, 32, 4, cluster_size=64)
    assert torch.equal(embeddings, again)
