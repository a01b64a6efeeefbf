"""Search among many vectors by FAISS: recall, time and bytes of each index, beside the product with all of them.

    python recipes/benchmarks/vector_search.py recipes/settings/benchmarks/vector_search/measured.yaml

Vectors lie in clusters around random directions, share a vector, and differ in length (log-normal, sigma .25). A query
points near one of them. Measured: recipes/phrases.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor

from hf_targets import VectorIndex
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """What is measured."""

    num_vectors: int = field(default=65_536, metadata={"help": "Vectors to search among."})
    dim: int = field(default=768, metadata={"help": "Width."})
    num_queries: int = field(default=64, metadata={"help": "Queries of a batch."})
    cluster_size: int = field(default=64, metadata={"help": "Vectors of a cluster; as many as k is the worst case."})
    k: int = field(default=64, metadata={"help": "Vectors to find for a query."})
    metric: Literal["inner_product", "distance"] = field(default="inner_product", metadata={"help": "What is near."})
    factories: list[str] = field(default_factory=lambda: ["Flat", "IVF512,Flat"], metadata={"help": "FAISS's names."})
    probe_shares: list[float] = field(default_factory=lambda: [1 / 16], metadata={"help": "Shares of lists probed."})


def clustered(setup: Setup) -> tuple[Tensor, Tensor]:
    """Return vectors (vectors, dim) and queries (queries, dim)."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(max(1, setup.num_vectors // setup.cluster_size), setup.dim, generator=generator)
    centres += 0.5 * torch.randn(setup.dim, generator=generator)
    vectors = torch.randn(setup.num_vectors, setup.dim, generator=generator)
    for block in vectors.split(65536):
        block += centres[torch.randint(len(centres), (len(block),), generator=generator)]
        block *= torch.exp(0.25 * torch.randn(len(block), 1, generator=generator)) / setup.dim**0.5
    near = vectors[torch.randint(len(vectors), (setup.num_queries,), generator=generator)]
    queries = 8 * torch.nn.functional.normalize(near, dim=1)
    queries += 0.3 * torch.randn(queries.shape, generator=generator)
    return vectors, queries * (vectors.norm(dim=1).mean() / 8 if setup.metric == "distance" else 1)


def milliseconds(call: Callable[[Tensor], object], queries: list[Tensor]) -> str:
    """Return the median time of a call."""
    times = []
    for query in queries:
        start = time.perf_counter()
        call(query)
        times.append(time.perf_counter() - start)
    return f"{1000 * median(times):.2f}"


def main(setup: Setup) -> None:
    """Print a row for the whole product, and one for each index and share of its lists."""
    vectors, queries = clustered(setup)
    ones, batches = list(queries[:16, None]), [queries] * 3
    lengths = vectors.square().sum(dim=1) / 2 if setup.metric == "distance" else vectors.new_zeros(1)

    def product(some: Tensor) -> torch.Tensor:
        return (some @ vectors.T - lengths).topk(setup.k).indices

    times = [milliseconds(product, ones), milliseconds(product, batches)]
    rows = [["product, topk", "1.000", *times, f"{vectors.nbytes / 1e6:.0f}", ""]]
    for factory in setup.factories:
        for share in setup.probe_shares if "IVF" in factory else [None]:
            lists = int(factory.removeprefix("IVF").partition(",")[0]) if share else 0
            start = time.perf_counter()
            probes = max(1, round(share * lists)) if share else None
            index = VectorIndex.build(vectors, factory, metric=setup.metric, num_probes=probes)
            seconds = time.perf_counter() - start
            with TemporaryDirectory() as folder:
                index.save(folder)
                size = sum(path.stat().st_size for path in Path(folder).iterdir())
            best, found = product(queries), index.search(queries, setup.k)[1]
            recall = f"{(found[:, :, None] == best[:, None]).any(dim=2).double().mean():.3f}"
            times = [milliseconds(lambda some, at=index: at.search(some, setup.k), some) for some in (ones, batches)]
            rows.append(
                [factory, recall, *times, f"{size / 1e6:.0f}", f"{seconds:.1f}", f"{share:.3f}" if share else ""]
            )
    print(markdown_table(["index", "recall", "ms, one query", "ms, all", "MB", "build, s"], rows))


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
