"""What tables of 100 million and of a billion phrases would cost, calculated from rates that were measured.

    python recipes/benchmarks/phrase_scale.py recipes/settings/benchmarks/phrase_scale/measured.yaml

Nothing is run: the settings file has the rates, each with where it was measured. Vectors are float16 and decide; an
index of FAISS (IVF lists of PQ codes) proposes. A step reads the codes of the probed lists from memory, and the vectors
of the candidates from the disk, a page each. Sources of phrases are not counted. See recipes/scale.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field

from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """Sizes, and rates of one core, one disk and one GPU."""

    num_phrases: list[int] = field(default_factory=lambda: [10**6, 10**8, 10**9], metadata={"help": "Of the tables."})
    dim: int = field(default=576, metadata={"help": "Width of the vectors."})
    code_bytes: int = field(default=64, metadata={"help": "PQ's bytes of a vector."})
    probe_share: float = field(default=0.01, metadata={"help": "Share of the lists that a step looks through."})
    num_candidates: int = field(default=512, metadata={"help": "Vectors that a step reads from the disk."})
    tokens_per_phrase: float = field(default=3.0, metadata={"help": "Mean length."})
    words_per_phrase: float = field(default=41.0, metadata={"help": "Words of text for a phrase that is kept."})
    mined_words: float = field(default=40_000.0, metadata={"help": "Words mined in a CPU second."})
    encoded_phrases: float = field(default=1_500.0, metadata={"help": "Phrases encoded in a CPU second."})
    gpu_phrases: float = field(default=100_000.0, metadata={"help": "Phrases encoded by a GPU in a second."})
    scanned_codes: float = field(default=1e8, metadata={"help": "Codes that a core compares in a second."})
    disk_reads: float = field(default=100_000.0, metadata={"help": "Pages that a disk gives in a second."})
    num_cores: int = field(default=100, metadata={"help": "Cores that mine or encode."})
    num_gpus: int = field(default=8, metadata={"help": "GPUs that encode."})


def costs(setup: Setup, count: int) -> list[str]:
    """Return the cells of one number of phrases."""
    vectors, codes = 2 * setup.dim * count, (setup.code_bytes + 8) * count  # FAISS keeps a number beside each code
    tokens = (4 * setup.tokens_per_phrase + 8) * count
    scan = setup.probe_share * count / setup.scanned_codes
    reads = setup.num_candidates / setup.disk_reads
    hours = {
        "mining": setup.words_per_phrase * count / setup.mined_words / setup.num_cores / 3600,
        "cores": count / setup.encoded_phrases / setup.num_cores / 3600,
        "gpus": count / setup.gpu_phrases / setup.num_gpus / 3600,
    }
    return [
        f"{count:,}",
        *(f"{size / 1e9:,.1f}" for size in (vectors + codes + tokens, codes, 2 * vectors)),
        *(f"{1000 * seconds:,.1f}" for seconds in (scan, reads)),
        *(f"{hours[name]:,.2f}" for name in ("mining", "cores", "gpus")),
    ]


def main(setup: Setup) -> None:
    """Print the table."""
    names = [
        "phrases",
        "disk, GB",
        "memory: codes, GB",
        "memory without an index (float32), GB",
        "a step, one core: codes, ms",
        "vectors, ms",
        f"mining, {setup.num_cores} cores, h",
        f"encoding, {setup.num_cores} cores, h",
        f"encoding, {setup.num_gpus} GPUs, h",
    ]
    print(markdown_table(names, [costs(setup, count) for count in setup.num_phrases]))
    print(f"\nWords of text to read for each phrase that is kept: {setup.words_per_phrase:g}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
