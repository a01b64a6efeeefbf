"""What drafts, losses, phrases and sentence curves cost on one GPU: a JSON file and a Markdown table, in minutes.

    python recipes/benchmarks/gpu.py recipes/settings/benchmarks/gpu/measured.yaml

All weights are random and made on the spot; nothing is downloaded. `--tiny true` runs every part in small, on a CPU
too, which shows that it works and nothing else. The losses of Liger and of Cut Cross-Entropy are measured where
`liger-kernel` and `cut-cross-entropy` are installed. A part that fails is named in the results, and the next one runs.
Memory is what a step holds above the model and its gradients. Measured: recipes/gpu.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import json
import math
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import torch
import transformers
from benchmarks import curves, draft_steps, losses, phrases, train_step

from lab.settings import parse_settings
from lab.tables import markdown_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PARTS = ("drafts", "training", "losses", "phrases", "diffusion")


@dataclass
class Setup:
    """What is measured, and where it is written."""

    parts: list[str] = field(default_factory=lambda: list(PARTS), metadata={"help": "Parts to run."})
    tiny: bool = field(default=False, metadata={"help": "Small sizes: whether it runs, not how fast it is."})
    output_dir: str = field(default="runs/benchmarks/gpu", metadata={"help": "Of gpu.json and gpu.md."})


@dataclass
class Row:
    """A measurement; `ratio` is its time over that of the first way of its case."""

    case: str
    way: str
    milliseconds: float
    ratio: float
    megabytes: float = math.nan


def rows_of(case: str, seconds: dict[str, float], megabytes: dict[str, float] | None = None) -> Iterator[Row]:
    """Return a row per way."""
    first = next(iter(seconds.values()))
    for way, value in seconds.items():
        yield Row(case, way, 1000 * value, value / first, (megabytes or {}).get(way, math.nan))


def drafts(tiny: bool) -> Iterator[Row]:
    """Time 40 greedy tokens by plain decoding, the ensemble and drafts; all texts must be those of plain decoding."""
    shapes: dict[str, dict[str, Any]] = {
        "Llama 1B": {"num_layers": 16, "vocab_size": 128256, "num_key_value_heads": 8},
        "GPT-Neo 1.3B": {"num_layers": 24, "vocab_size": 50257, "architecture": "gpt_neo"},
    }
    small = {"hidden_size": 128, "intermediate_size": 64, "num_layers": 2, "vocab_size": 64, "max_new_tokens": 6}
    small |= {"num_key_value_heads": 2}
    for name, shape in shapes.items():
        sizes: Any = {"hidden_size": 2048, "intermediate_size": 8192, "max_new_tokens": 40, **shape}
        setup = draft_steps.Setup(
            **{**sizes, **(small if tiny else {})}, rounds=1 if tiny else 3, acceptances=[0.3, 0.8]
        )
        for size in (2,) if tiny else (1, 8, 32):
            for cells in draft_steps.measure(setup, "bfloat16", size, DEVICE):
                way, milliseconds, tokens, of_pass, ratio = cells[2:]
                way += f" ({tokens} tokens a pass)" if tokens else ""
                yield Row(f"{name}, {size} rows", way, float(milliseconds or "nan"), float(ratio or of_pass))


def training(tiny: bool) -> Iterator[Row]:
    """Time a training step of N = 4, forward and backward, under bfloat16 autocast."""
    for vocab_size in (512,) if tiny else (50257, 128256):
        sizes: Any = {"hidden_size": 2048, "num_layers": 12, "batch_size": 8, "block_size": 1024}
        sizes |= {"hidden_size": 64, "num_layers": 1, "batch_size": 2, "block_size": 16} if tiny else {}
        setup = train_step.Setup(vocab_size=vocab_size, rounds=5, dtype="bfloat16", **sizes)
        memory: dict[str, float] = {}
        for variant in ("plain", "simple", "wdr"):
            memory[variant] = train_step.added_memory(replace(setup, variant=variant), DEVICE)
        times = train_step.seconds_of_steps(setup, "bfloat16", DEVICE)
        case = f"step, V = {vocab_size:,}, {setup.batch_size * setup.block_size:,} tokens"
        yield from rows_of(case, {way: median(seconds) for way, seconds in times.items()}, memory)


def loss_alone(tiny: bool) -> Iterator[Row]:
    """Time the loss of 4 x 4,096 states alone, with its gradients in bfloat16."""
    for vocab_size in (512,) if tiny else (50257, 128256):
        setup = losses.Setup(vocab_size=vocab_size, **{"num_states": 64, "hidden_size": 32} if tiny else {})
        seconds, megabytes, errors = losses.measure(setup, DEVICE)
        ways = {name: f"{name} (error of gradients {error:.1%})" for name, error in errors.items()}
        case = f"loss, V = {vocab_size:,}, {setup.num_states:,} states"
        renamed = [{ways[name]: value for name, value in values.items()} for values in (seconds, megabytes)]
        yield from rows_of(case, *renamed)


@torch.no_grad()
def phrase_steps(tiny: bool) -> Iterator[Row]:
    """Time a greedy step of GPT-2's size with the cache, among phrases."""
    for batch_size in (2,) if tiny else (1, 32):
        sizes: Any = {"num_layers": 1, "hidden_size": 32, "vocab_size": 400, "table_sizes": [0, 64]} if tiny else {}
        sizes = sizes or {"table_sizes": [0, 65536, 1_000_000]}
        setup = phrases.Setup(batch_size=batch_size, rounds=3, **sizes)
        model: Any = phrases.make_model(setup)
        seconds = phrases.seconds_of_steps(model.to(DEVICE, torch.bfloat16), setup)
        yield from rows_of(f"a step, {batch_size} rows", {f"{n:,} phrases": value for n, value in seconds.items()})


def diffusion(tiny: bool) -> Iterator[Row]:
    """Time MDLM of the size published for OpenWebText, 16 texts of 1,024 tokens, under bfloat16 autocast."""
    sizes: Any = {"vocab_size": 50258, "num_tokens": 16 * 1024, "num_steps": 16, "ratios": [1.0, 2.0]}
    sizes |= {"hidden_size": 64, "num_layers": 1, "num_tokens": 32, "num_steps": 2} if tiny else {}
    setup, length = curves.Setup(bf16=True, rounds=3, **sizes), 16 if tiny else 1024
    models = curves.make_models(setup, length)
    for part, case in (("train", "a training step"), ("sample", f"{setup.num_steps} steps of sampling")):
        yield from rows_of(f"{case}, {setup.num_tokens:,} tokens", curves.seconds_of(setup, length, part, models))


def measure(name: str, tiny: bool) -> dict[str, Any]:
    """Return what a part measured until its end or its error, and its seconds."""
    functions = {"drafts": drafts, "training": training, "losses": loss_alone, "phrases": phrase_steps}
    start, rows, error = time.perf_counter(), [], None
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans 30 ms for every new length of a text, drafted or not
    try:
        for row in {**functions, "diffusion": diffusion}[name](tiny):
            rows.append(asdict(row))
            print(name, *asdict(row).values(), sep="\t", flush=True)
    except Exception:
        error = traceback.format_exc()
        print(error, flush=True)
    return {"rows": rows, "seconds": time.perf_counter() - start, "error": error}


def main(setup: Setup) -> None:
    """Measure the parts asked for, and write the results after each."""
    gpu = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    results: dict[str, Any] = {"device": gpu, "date": time.strftime("%Y-%m-%d"), **versions, "parts": {}}
    folder = Path(setup.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for name in setup.parts:
        results["parts"][name] = measure(name, setup.tiny)
        (folder / "gpu.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    lines = [[name, *_cells(Row(**row))] for name, part in results["parts"].items() for row in part["rows"]]
    table = markdown_table(["part", "case", "way", "ms", "x the first", "MB added"], lines, num_names=3)
    (folder / "gpu.md").write_text(table + "\n", encoding="utf-8")
    print(f"\n{gpu}, {results['date']}, {versions}\n\n{table}")
    if failed := [name for name, part in results["parts"].items() if part["error"]]:
        raise SystemExit(f"failed: {', '.join(failed)}; see {folder / 'gpu.json'}")


def _cells(row: Row) -> list[str]:
    numbers = (f"{row.milliseconds:.2f}", f"{row.ratio:.2f}", f"{row.megabytes:.0f}")
    return [row.case, row.way, *("" if number == "nan" else number for number in numbers)]


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
