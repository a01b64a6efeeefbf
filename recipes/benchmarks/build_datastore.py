"""How fast `build_phrase_datastore.py` mines and encodes with several numbers of workers, and that results are equal.

    HF_TARGETS_DATA=data python recipes/benchmarks/build_datastore.py \
        recipes/settings/benchmarks/build_datastore/measured.yaml --kill_after 200

With `--kill_after` a worker is killed with -9 in the run with the most workers. Measured: recipes/scale.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field, fields, replace

import build_phrase_datastore as recipe
import numpy as np
import psutil
import pyarrow as pa
from datasets import Dataset

from hf_targets import train_bpe_tokenizer
from hf_targets.extras import require
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup(recipe.Setup):
    """Documents, or how many are made, and the numbers of workers that are compared."""

    made_passages: int = field(default=200, metadata={"help": "Documents to make, where the dataset is made."})
    made_words: int = field(default=40, metadata={"help": "Words of a made document."})
    compared: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "Workers; 0: without Ray."})
    kill_after: float | None = field(default=None, metadata={"help": "Seconds until a worker is killed."})

    def __post_init__(self) -> None:
        """Without a tokenizer one is trained."""


def make_documents(path: Path, count: int, num_words: int) -> None:
    """Write documents of words drawn by Zipf's law, in sentences, to a Parquet file."""
    draws, ends = random.Random(0), [*"aeiou"]
    syllables = [first + second for first in "bcdfghklmnprstv" for second in ends]
    words = [first + second + third for first in syllables for second in syllables for third in syllables[::25]]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    flat = iter(draws.choices(words, weights, k=count * num_words))
    texts = (" ".join(next(flat) for _ in range(num_words)).capitalize() + "." for _ in range(count))
    Dataset.from_dict({"text": list(texts)}).to_parquet(str(path))


def kill_a_worker(seconds: float) -> None:
    """Kill a worker of Ray below this process that is at work, after some seconds."""
    deadline = time.monotonic() + seconds
    while True:
        time.sleep(0.2)
        below = psutil.Process().children(recursive=True)
        at_work = [one for one in below if any("_work_once" in word or "MapWorker" in word for word in one.cmdline())]
        if time.monotonic() > deadline and at_work:
            print(f"kill -9 of {at_work[0].cmdline()[0]}", flush=True)
            os.kill(at_work[0].pid, signal.SIGKILL)
            return


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    """Return the phrases, what is told of them, their embeddings and the passages' vectors, to compare them."""
    found = {path.name: np.load(path) for path in sorted((folder / "phrases").glob("*.npy"))}
    for kind in ("safetensors", "json"):
        files = sorted((folder / "phrases").glob(f"*.{kind}"))
        found |= {path.name: np.frombuffer(path.read_bytes(), np.uint8) for path in files}
    for path in sorted((folder / "shards").glob("vectors-*.arrow")):
        found[path.name] = pa.ipc.open_file(path).read_all()["vector"].combine_chunks().flatten().to_numpy()
    return found


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether integers are the same, and floats but for rounding."""
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-2, atol=1e-3)


def main(setup: Setup) -> None:
    """Print the rates of each number of workers, and whether the results are equal."""
    folder, rows, first = Path(setup.output_dir), [], None
    folder.mkdir(parents=True, exist_ok=True)
    own = {one.name: getattr(setup, one.name) for one in fields(recipe.Setup)}
    if setup.dataset == "made":
        own["dataset"] = str(folder / "made.parquet")
        make_documents(Path(own["dataset"]), setup.made_passages, setup.made_words)
    if own["tokenizer"] is None:
        own["tokenizer"] = str(folder / "tokenizer")
        texts = recipe.Setup(**own).documents()["text"][:]
        train_bpe_tokenizer(texts, 4096).save_pretrained(own["tokenizer"])
    for count in setup.compared:
        out = folder / f"workers{count}"
        shutil.rmtree(out, ignore_errors=True)
        if setup.kill_after is not None and count == max(setup.compared):
            threading.Thread(target=kill_a_worker, args=(setup.kill_after,), daemon=True).start()
        start = time.perf_counter()
        results = recipe.main(replace(recipe.Setup(**own), workers=count or None, output_dir=str(out)))
        seconds, found = time.perf_counter() - start, arrays_of(out)
        first = first or found
        is_equal = all(equal(found[name], first[name]) for name in first)
        for step in results["steps"].values():
            rates = [step["items"] / step[seconds] for seconds in ("seconds", "cpu_seconds")]
            rows.append([step["name"], str(count), f"{step['items']:,}", *(f"{rate:,.0f}" for rate in rates)])
        rows.append([f"all: {'equal' if is_equal else 'not equal'}", str(count), "", f"{seconds:.0f} s", ""])
        if count:  # the next run starts it with its own number of workers
            require("ray", extra="scale").shutdown()
    columns = ["step", "workers", "items", "a second", "a CPU second"]
    print(f"\n{results['phrases']:,} phrases\n\n{markdown_table(columns, rows)}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
