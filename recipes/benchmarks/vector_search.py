"""Search among many vectors: recall, time and bytes of each index, beside the product with all of them.

    python recipes/benchmarks/vector_search.py recipes/settings/benchmarks/vector_search/measured.yaml

Vectors are made, or a model's phrases or keys: see `lab/vectors.py`. Milliseconds are CPU time, of a median search;
start it with OMP_NUM_THREADS=1. Megabytes in memory are those of the index's files that this process holds after its
searches.
Measured: recipes/baselines.md, recipes/phrases.md, recipes/scale.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from hf_targets import DiskIndex, VectorIndex, VectorSearch
from lab.settings import parse_settings
from lab.tables import markdown_table
from lab.vectors import VectorSettings, clustered, of_model


@dataclass
class Setup(VectorSettings):
    """What is measured."""

    k: int = field(default=64, metadata={"help": "Vectors to find for a query."})
    places: list[str] = field(default_factory=lambda: ["memory"], metadata={"help": "Of an index: memory, disk."})
    factories: list[str] = field(default_factory=lambda: ["Flat", "IVF512,Flat"], metadata={"help": "FAISS's names."})
    probe_shares: list[float] = field(default_factory=lambda: [1 / 16], metadata={"help": "Shares of lists probed."})
    candidates: list[int] = field(default_factory=lambda: [4], metadata={"help": "Re-ranked on disk, for each of k."})


def milliseconds(call: Callable[[Tensor], object], queries: list[Tensor]) -> str:
    """Return the median CPU time of a call."""
    times = []
    for query in queries:
        start = time.process_time()
        call(query)
        times.append(time.process_time() - start)
    return f"{1000 * median(times):.2f}"


@torch.no_grad()
def model_step(name: str) -> str:
    """Return the median CPU time of a model's step, in float32, for one text of 64 tokens."""
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    ids = torch.arange(64)[None]
    cache = model(ids, use_cache=True).past_key_values
    return milliseconds(lambda one: model(one, past_key_values=cache, use_cache=True), [ids[:, :1]] * 32)


def megabytes_in_memory(folder: str) -> float:
    """Return how much of the files of a folder is in memory of this process: what is mapped of them, or all."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8")
    total, counts = sum(path.stat().st_size / 1000 for path in Path(folder).iterdir() if str(path) not in text), False
    for line in text.splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            counts = folder in line
        elif counts and first == "Rss:":
            total += int(rest[0])
    return total / 1000


def main(setup: Setup) -> None:
    """Print a row for the whole product, and one for each index and way to search it."""
    generator = torch.Generator().manual_seed(0)
    vectors, queries, fitted = (of_model if setup.model_name_or_path else clustered)(setup, generator)
    ones, batches = list(queries[:, None]), [queries] * 3
    lengths = torch.zeros(1)
    if setup.metric == "distance" and vectors.dtype != torch.float16:
        lengths = vectors.square().sum(dim=1) / 2

    def exact(some: Tensor) -> Tensor:
        if vectors.dtype == torch.float16:  # block by block, as a datastore without an index does
            return DiskIndex(vectors.numpy(), metric=setup.metric).search(some, setup.k)[1]
        return (some @ vectors.T - lengths).topk(setup.k).indices

    best, times = exact(queries), [milliseconds(exact, ones[:16]), milliseconds(exact, batches)]
    rows = [["product, topk", "", "", "1.000", *times, f"{vectors.nbytes / 1e6:.0f}", "", ""]]

    if setup.model_name_or_path and setup.vectors == "phrases":
        rows.append(["a step of the model", *[""] * 3, model_step(setup.model_name_or_path), *[""] * 4])

    def measure(index: VectorSearch, name: str, about: list[str], sizes: list[str]) -> None:
        found = torch.cat([index.search(one, setup.k)[1] for one in ones])
        recall = f"{(found[:, :, None] == best[:, None]).any(dim=2).double().mean():.3f}"
        times = [milliseconds(lambda some: index.search(some, setup.k), some) for some in (ones, batches)]
        rows.append([name, *about, recall, *times, *sizes])
        print(rows[-1], file=sys.stderr, flush=True)

    for place, factory in product(setup.places, setup.factories):
        lists = int(factory.partition("IVF")[2].partition(",")[0] or 0)
        shares = setup.probe_shares if lists else [None]
        with TemporaryDirectory() as folder:
            start = time.process_time()
            if place == "disk":
                how: Any = {"queries": fitted} if len(fitted) else {}
                DiskIndex.build(vectors, factory, folder=folder, metric=setup.metric, **how)
            else:
                built = VectorIndex.build(vectors, factory, metric=setup.metric)
                built.save(folder)
            seconds = f"{time.process_time() - start:.0f}"
            megabytes = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
            for share, count in product(shares, setup.candidates if place == "disk" else [0]):
                probes, about = max(1, round((share or 0) * lists)), [f"{share or 1:.3f}", str(count or "")]
                if place == "disk":
                    index = DiskIndex.load(folder, num_probes=probes, num_candidates=count)
                    measure(index, f"{factory}, {'fitted, ' * bool(how)}disk", about, [f"{megabytes:.0f}", seconds])
                    rows[-1].insert(-1, f"{megabytes_in_memory(folder):.0f}")
                    del index
                    continue
                if share:
                    faiss.extract_index_ivf(built.index).nprobe = probes
                measure(built, factory, about, [f"{megabytes:.0f}", f"{megabytes:.0f}", seconds])
    columns = ["index", "lists", "candidates", "recall", "ms, one query", "ms, all", "MB", "MB in memory", "build, s"]
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
