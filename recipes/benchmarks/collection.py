"""A collection of documents on disk: seconds to make, search, change and open it, and megabytes in memory and on disk.

    python recipes/benchmarks/collection.py recipes/settings/benchmarks/collection/measured.yaml

Words are drawn by Zipf's law. A text's vector is drawn with a seed from the text, in place of an encoder.
Measured: recipes/phrases.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from zlib import crc32

import numpy as np

from hf_targets import DocumentCollection
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """What is measured."""

    num_documents: int = field(default=200_000, metadata={"help": "Added in one call."})
    num_deleted: int = field(default=1000, metadata={"help": "Deleted in one call."})
    num_queries: int = field(default=100, metadata={"help": "Searched in one call, 10 documents each."})
    num_words: int = field(default=64, metadata={"help": "Of a document."})
    dim: int = field(default=64, metadata={"help": "Width of the vectors."})


class MadeVectors:
    """Vectors that depend on the text alone."""

    def __init__(self, dim: int) -> None:
        self.table = np.random.default_rng(0).standard_normal((65_536, dim), np.float32)

    def encode_document(self, texts: list[str]) -> np.ndarray:
        """Return a vector for each text."""
        return self.table[[crc32(text.encode()) % len(self.table) for text in texts]]

    encode_query = encode_document


def made_texts(setup: Setup) -> dict[str, str]:
    """Return texts by id."""
    words = np.random.default_rng(1).zipf(1.3, (setup.num_documents, setup.num_words)) % 50_000
    return {f"document {number}": " ".join(f"w{word}" for word in row) for number, row in enumerate(words)}


def main(setup: Setup) -> None:
    """Print a row for each step."""
    documents, encoder, rows = made_texts(setup), MadeVectors(setup.dim), []
    queries = [" ".join(text.split()[:8]) for text in list(documents.values())[: setup.num_queries]]
    with TemporaryDirectory() as folder:
        collection = DocumentCollection.create(folder, encoder)

        def timed(step: str, act: Callable[[], object]) -> None:
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
            act()
            seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            rows.append([step, f"{seconds:.2f}", f"{(after - before) / 1024:.0f}", f"{disk / 1e6:.0f}"])

        timed("make", lambda: collection.add(documents))
        timed("search by vectors", lambda: collection.retrieve(queries, 10))
        timed("search by words", lambda: collection.retrieve(queries, 10, by="words"))
        timed("search by both", lambda: collection.retrieve(queries, 10, by="both"))
        timed("read texts by id", lambda: [collection[f"document {number}"] for number in range(setup.num_queries)])
        timed("delete", lambda: collection.delete(f"document {number}" for number in range(setup.num_deleted)))
        timed("compact", collection.table.optimize)
        timed("open", lambda: DocumentCollection.open(folder, encoder))
    print(f"{setup.num_documents:,} documents, {setup.num_queries} queries, {setup.num_deleted:,} deleted\n")
    print(markdown_table(["step", "s", "MB more at the peak", "MB on disk"], rows))


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
