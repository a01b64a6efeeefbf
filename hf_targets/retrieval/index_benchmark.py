"""The product with a whole table compared with searches of an index: recall, time, bytes, time to build.

`clustered_embeddings` makes a table to measure on: embeddings lie in clusters around random directions, all share a
vector, and lengths differ (log-normal, sigma .25). A query points near one of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from hf_targets.markdown import markdown_table
from hf_targets.retrieval.vector_index import VectorIndex


@dataclass(frozen=True)
class IndexSpeed:
    """One way of searching.

    Attributes:
        name: Of the way.
        recall: Share of the exact top k found, mean over the queries.
        milliseconds: Median for one query.
        batch_milliseconds: Median for all queries at once.
        num_bytes: Memory of the index.
        build_seconds: What building it took.
    """

    name: str
    recall: float
    milliseconds: float
    batch_milliseconds: float
    num_bytes: int
    build_seconds: float


def clustered_embeddings(
    num_vectors: int, dim: int, num_queries: int, *, cluster_size: int = 64, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return embeddings (vectors, dim) in clusters, and queries (queries, dim) that point near some of them."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(1, num_vectors // cluster_size), dim, generator=generator)
    centres += 0.5 * torch.randn(dim, generator=generator)
    embeddings = torch.randn(num_vectors, dim, generator=generator)
    for block in embeddings.split(65536):
        block += centres[torch.randint(len(centres), (len(block),), generator=generator)]
        block *= torch.exp(0.25 * torch.randn(len(block), 1, generator=generator)) / dim**0.5
    near = embeddings[torch.randint(num_vectors, (num_queries,), generator=generator)]
    queries = 8 * torch.nn.functional.normalize(near, dim=1)
    return embeddings, queries + 0.3 * torch.randn(num_queries, dim, generator=generator)


def compare_indexes(embeddings: Tensor, queries: Tensor, k: int, probe_shares: Sequence[float]) -> list[IndexSpeed]:
    """Return the whole product (`torch.topk`), the exact index and `ivf` with each share of its lists probed."""
    speeds = [
        IndexSpeed(
            "matrix product, topk",
            1.0,
            _milliseconds([lambda row=row: (row @ embeddings.T).topk(k) for row in queries[:16, None]]),
            _milliseconds([lambda: (queries @ embeddings.T).topk(k)] * 3),
            embeddings.nbytes,
            0.0,
        )
    ]
    for mode in ("exact", "ivf"):
        start = time.perf_counter()
        index = VectorIndex.build(embeddings, mode=mode)
        seconds = time.perf_counter() - start
        counts = (
            [None] if index.num_lists is None else [max(1, round(share * index.num_lists)) for share in probe_shares]
        )
        speeds += [_speed_of(index, queries, k, count, seconds) for count in counts]
        del index  # before the next is built
    return speeds


def _speed_of(index: VectorIndex, queries: Tensor, k: int, num_probes: int | None, build_seconds: float) -> IndexSpeed:
    one = [lambda row=row: index.search(row, k, num_probes=num_probes) for row in queries[:, None]]
    return IndexSpeed(
        index.mode if num_probes is None else f"{index.mode}, {num_probes} of {index.num_lists} lists",
        index.recall(queries, k, num_probes=num_probes),
        _milliseconds(one[:16] if num_probes is None else one),
        _milliseconds([lambda: index.search(queries, k, num_probes=num_probes)] * 3),
        index.num_bytes,
        build_seconds,
    )


def format_index_speeds(speeds: Sequence[IndexSpeed]) -> str:
    """Return a Markdown table."""
    columns = ["search", "recall", "ms, one query", "ms, all", "MB", "build, s"]
    rows = [
        [
            speed.name,
            f"{speed.recall:.3f}",
            f"{speed.milliseconds:.2f}",
            f"{speed.batch_milliseconds:.1f}",
            f"{speed.num_bytes / 1e6:.0f}",
            f"{speed.build_seconds:.1f}",
        ]
        for speed in speeds
    ]
    return markdown_table(columns, rows)


def _milliseconds(calls: Sequence[Callable[[], object]]) -> float:
    calls[0]()
    times = []
    for call in calls:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * median(times)
