"""Perplexity of a test text with kNN-LM over the training text, beside the model alone and the continuous cache.

    HF_TARGETS_DATA=data python recipes/tables/knn_lm.py recipes/settings/tables/knn_lm/smollm2.yaml

Lambda, the temperature and the cache's theta are those of the lowest perplexity of the validation text. The datastore
stays in the output folder: a build that was broken off goes on, and a whole one is used again. Measured:
recipes/baselines.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from hf_targets import KnnDatastore, KnnProcessor, cached_perplexities, search_cache
from hf_targets.evaluation.timing import median_seconds
from hf_targets.neural_cache.perplexity import WITHOUT
from lab.results import write_results
from lab.settings import parse_settings
from lab.tables import markdown_table
from lab.text import BlockSettings


@dataclass
class Setup(BlockSettings):
    """The model, its texts, and what is searched."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Causal model, with its tokenizer."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the model."})
    factories: list[str] = field(default_factory=lambda: ["exact"], metadata={"help": "Of FAISS, or exact."})
    k: int = field(default=1024, metadata={"help": "Neighbours."})
    temperatures: list[float] = field(default_factory=lambda: [10.0, 30.0, 100.0, 300.0], metadata={"help": "Tried."})
    weights: list[float] = field(default_factory=lambda: [0.05, 0.1, 0.2, 0.3, 0.4], metadata={"help": "Tried."})
    window: int = field(default=1000, metadata={"help": "W of the cache."})
    thetas: list[float] = field(default_factory=lambda: [10.0, 20.0, 40.0], metadata={"help": "Tried, relative."})
    timed_blocks: int = field(default=2, metadata={"help": "Of test text, scored again for tokens a second."})
    workers: int | None = field(default=None, metadata={"help": "Processes of Ray that build. None: this one."})
    output_dir: str = field(default="runs/knn_lm", metadata={"help": "Folder of the datastore and the results."})


def main(setup: Setup) -> str:
    """Build the datastore, choose settings, and return the table."""
    texts = setup.load()
    name: Any = setup.model_name_or_path
    tokenizer = setup.tokenizer(name, texts)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=setup.dtype).eval()
    blocks: Any = setup.blocks(texts, tokenizer)
    folder = Path(setup.output_dir, "store")
    cache = search_cache(model, blocks["validation"], setup.window, setup.thetas, [0.0, *setup.weights], relative=True)
    rows, results = [], {}
    for factory in setup.factories:
        start = time.perf_counter()
        given: Any = {"factory": None if factory == "exact" else factory, "workers": setup.workers}
        store = KnnDatastore.build(model, blocks["train"], folder, **given)
        seconds = time.perf_counter() - start
        grid: Any = {"temperatures": setup.temperatures, "weights": setup.weights}
        knn = KnnProcessor(store, model, k=setup.k).tuned(blocks["validation"], **grid)
        ways: dict[str, Any] = {"cache": cache, "kNN-LM": knn, "both": (knn, cache)}
        found = cached_perplexities(model, blocks["test"], ways)
        state = torch.tensor(store.keys[:1]).float()
        search = median_seconds({"search": lambda at=store, one=state: at.search(one, setup.k)}, 9, model.device)
        least = -(-setup.window // (setup.block_size - 1))  # a cache reads no shorter text
        some = blocks["test"].take(min(max(setup.timed_blocks, least), len(blocks["test"])))
        speeds = {}
        for way, given in {WITHOUT: {}, **{name: {name: one} for name, one in ways.items()}}.items():
            start = time.process_time()
            scored = cached_perplexities(model, some, given)[WITHOUT].num_tokens
            speeds[way] = scored / (time.process_time() - start)
        settings = {"cache": f"theta {cache.theta:g}, lambda {cache.weight:g}"}
        settings |= dict.fromkeys(["kNN-LM", "both"], f"temperature {knn.temperature:g}, lambda {knn.weight:g}")
        rows += [
            [factory, way, f"{one.per_token:.2f}", f"{one.per_word:.1f}", f"{speeds[way]:.0f}", settings.get(way, "")]
            for way, one in found.items()
        ]
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        told = {"keys": len(store), "MB": size, "build, s": seconds, "search, ms": 1000 * search["search"]}
        results[factory] = told | {way: one.per_token for way, one in found.items()} | {"settings": settings}
        results[factory] |= {f"{way}, tokens a CPU second": speed for way, speed in speeds.items()}
        print(factory, *(f"{key} {value:,.1f}" for key, value in told.items()), sep=", ")
    write_results(setup.output_dir, {"settings": vars(setup), "results": results})
    table = markdown_table(["search", "text", "per token", "per word", "tokens a CPU second", "chosen"], rows)
    return f"\n{table}\n\nDatastores and results: {setup.output_dir}"


if __name__ == "__main__":
    print(main(*parse_settings(Setup, description=__doc__)))
