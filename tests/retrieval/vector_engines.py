"""Every engine that searches vectors, made to be exact: how each is built in a folder, and loaded from it."""

import atexit
from functools import cache, partial

import torch

from hf_targets import DiskIndex, DiskIndexBuilder, LanceIndex, QdrantIndex, ShardedIndex, VectorIndex

LISTS = "IVF4,PQ4x2"


def build_in_memory(embeddings, folder, **how):
    VectorIndex.build(embeddings, **how).save(folder)


def build_on_disk(embeddings, folder, **how):
    DiskIndex.build(embeddings, LISTS, folder=folder, num_probes=4, **how)


def build_shards(embeddings, folder, **how):
    builder = DiskIndexBuilder.train(folder, embeddings, LISTS, num_probes=4, **how)
    for shard, part in enumerate(embeddings.split(len(embeddings) - 9)):
        builder.fill(shard, part)


def build_in_qdrant(embeddings, folder, **how):
    client = opened(folder)
    try:
        QdrantIndex.build(embeddings, client=client, name="vectors", **how)
    finally:
        client.close()


def load_from_qdrant(folder, **how):
    return QdrantIndex.load(opened_once(folder), "vectors", **how)


def opened(folder):
    from qdrant_client import QdrantClient

    return QdrantClient(path=str(folder))


@cache
def opened_once(folder):  # one client at a time may have a folder
    client = opened(folder)
    atexit.register(client.close)
    return client


ENGINES = {
    "memory": (build_in_memory, VectorIndex.load),
    "disk": (build_on_disk, partial(DiskIndex.load, num_candidates=1000)),
    "shards": (build_shards, partial(ShardedIndex.load, num_candidates=1000)),
    "lance": (lambda embeddings, folder, **how: LanceIndex.build(embeddings, folder=folder, **how), LanceIndex.load),
    "qdrant": (build_in_qdrant, load_from_qdrant),
}
MODULES = {"lance": "lancedb", "qdrant": "qdrant_client"}


def whole_numbers(num_vectors, dim, seed=0):
    """Return vectors whose products and distances are exact in float16 and float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, (num_vectors, dim), generator=generator).float()


def brute_force(queries, embeddings, metric):
    """Return all scores (rows, vectors), in float64."""
    queries, embeddings = queries.double(), embeddings.double()
    if metric == "inner_product":
        return queries @ embeddings.T
    return (queries[:, None] - embeddings).square().sum(dim=2)
