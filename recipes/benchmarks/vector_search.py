"""Search among many vectors: recall, time and bytes of each index, beside the product with all of them.

    python recipes/benchmarks/vector_search.py recipes/settings/benchmarks/vector_search/measured.yaml

Made vectors lie in clusters around random directions, share a vector, and differ in length (log-normal, sigma .25). A
query points near one of them. With a model, vectors are its phrases, and queries its hidden states. Milliseconds are
CPU time; start it with OMP_NUM_THREADS=1. Measured: recipes/phrases.md, recipes/scale.md.
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
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import DiskIndex, DynamicVocabForCausalLM, PhraseVocabulary, VectorIndex, VectorSearch
from lab.settings import parse_settings
from lab.tables import markdown_table
from lab.text import TextSettings


@dataclass
class Setup(TextSettings):
    """What is measured."""

    num_vectors: int = field(default=65_536, metadata={"help": "Vectors to search among."})
    dim: int = field(default=768, metadata={"help": "Width of made vectors."})
    num_queries: int = field(default=64, metadata={"help": "Queries of a batch."})
    cluster_size: int = field(default=64, metadata={"help": "Vectors of a cluster; as many as k is the worst case."})
    k: int = field(default=64, metadata={"help": "Vectors to find for a query."})
    metric: Literal["inner_product", "distance"] = field(default="inner_product", metadata={"help": "What is near."})
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Whose phrases and states; None: made ones."}
    )
    num_phrases: int = field(default=50_000, metadata={"help": "Phrases to encode; the rest are copies with noise."})
    noise: float = field(default=0.3, metadata={"help": "Length of a copy's noise, of that of the phrase's vector."})
    places: list[str] = field(default_factory=lambda: ["memory"], metadata={"help": "Of an index: memory, disk."})
    factories: list[str] = field(default_factory=lambda: ["Flat", "IVF512,Flat"], metadata={"help": "FAISS's names."})
    probe_shares: list[float] = field(default_factory=lambda: [1 / 16], metadata={"help": "Shares of lists probed."})
    candidates: list[int] = field(default_factory=lambda: [4], metadata={"help": "Re-ranked on disk, for each of k."})


def clustered(setup: Setup, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return vectors (vectors, dim) and queries (queries, dim)."""
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


@torch.no_grad()
def of_phrases(setup: Setup, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return vectors of phrases by an encoder of a model's first two layers, with copies, and states of the model."""
    assert setup.model_name_or_path is not None
    tokenizer = AutoTokenizer.from_pretrained(setup.model_name_or_path)
    base: Any = AutoModelForCausalLM.from_pretrained(setup.model_name_or_path, dtype=torch.bfloat16)
    model = DynamicVocabForCausalLM.from_base(base, phrase_encoder_layers=2, phrase_start="encoder").eval()
    texts = {split: "".join(part["text"]) for split, part in setup.load().items()}
    ids = {
        split: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for split, text in texts.items()
    }
    train, length = ids["train"], 64 * setup.num_queries
    windows = sorted({tuple(train[at : at + size]) for size in range(2, 9) for at in range(len(train) - size + 1)})
    chosen = torch.randperm(len(windows), generator=generator)[: setup.num_phrases].tolist()
    vocabulary = PhraseVocabulary.from_token_ids(
        [windows[one] for one in chosen], tokenizer, vocab_size=base.get_output_embeddings().out_features
    )
    real = model.phrase_table(vocabulary).outputs.float()
    vectors = real.repeat(-(-setup.num_vectors // len(real)), 1)[: setup.num_vectors]
    for block, own in zip(
        vectors[len(real) :].split(65536), vectors[len(real) :].norm(dim=1).split(65536), strict=True
    ):
        noise = torch.randn(block.shape, generator=generator)
        block += setup.noise * own[:, None] * torch.nn.functional.normalize(noise, dim=1)
    states = base.model(torch.tensor(ids["validation"][:length]).view(-1, 64)).last_hidden_state[:, -1]
    return vectors, states.float()


def milliseconds(call: Callable[[Tensor], object], queries: list[Tensor]) -> str:
    """Return the median CPU time of a call."""
    times = []
    for query in queries:
        start = time.process_time()
        call(query)
        times.append(time.process_time() - start)
    return f"{1000 * median(times):.2f}"


def mapped_megabytes(folder: str) -> float:
    """Return how much of the files of a folder that are mapped is in memory."""
    lines, total, counts = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines(), 0, False
    for line in lines:
        if "-" in (first := line.split()[0]) and ":" not in first:
            counts = folder in line
        elif counts and first == "Rss:":
            total += int(line.split()[1])
    return total / 1000


def main(setup: Setup) -> None:
    """Print a row for the whole product, and one for each index and way to search it."""
    generator = torch.Generator().manual_seed(0)
    vectors, queries = (of_phrases if setup.model_name_or_path else clustered)(setup, generator)
    ones, batches = list(queries[:, None]), [queries] * 3
    lengths = vectors.square().sum(dim=1) / 2 if setup.metric == "distance" else vectors.new_zeros(1)

    def exact(some: Tensor) -> Tensor:
        return (some @ vectors.T - lengths).topk(setup.k).indices

    best, times = exact(queries), [milliseconds(exact, ones[:16]), milliseconds(exact, batches)]
    rows = [["product, topk", "", "", "1.000", *times, f"{vectors.nbytes / 1e6:.0f}", "", ""]]

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
                built: Any = DiskIndex.build(vectors, factory, folder=folder, metric=setup.metric)
            else:
                built = VectorIndex.build(vectors, factory, metric=setup.metric)
                built.save(folder)
            seconds = f"{time.process_time() - start:.0f}"
            megabytes = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
            for share, count in product(shares, setup.candidates if place == "disk" else [0]):
                probes, about = max(1, round((share or 0) * lists)), [f"{share or 1:.3f}", str(count or "")]
                if place == "disk":
                    index = DiskIndex.load(folder, num_probes=probes, num_candidates=count)
                    measure(index, f"{factory}, disk", about, [f"{megabytes:.0f}", seconds])
                    rows[-1].insert(-1, f"{mapped_megabytes(folder):.0f}")
                    del index
                    continue
                if share:
                    built.num_probes = probes
                measure(built, factory, about, [f"{megabytes:.0f}", f"{megabytes:.0f}", seconds])
    columns = ["index", "lists", "candidates", "recall", "ms, one query", "ms, all", "MB", "MB in memory", "build, s"]
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
