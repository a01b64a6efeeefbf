"""Time and peak memory of a training step: plain Transformers loss, simple N-gram and word differences, in one run.

    python recipes/benchmarks/train_step.py recipes/settings/benchmarks/train_step/measured.yaml

Every measurement is a process of its own, and the variants take turns, so that ratios hold on a busy machine too.
Memory is what a step adds to the process (on CUDA: to the allocated memory) above the model with gradients at rest.
Operations are counted by formula, 2 a multiply-add: 6 times each matrix product's weights and tokens.
Measured: recipes/multitoken.md.
"""

import json
import resource
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from hf_targets import MultiTokenForCausalLM, parse_settings
from hf_targets.evaluation.timing import settled_time
from hf_targets.markdown import markdown_table

VARIANTS = {"plain": None, "simple": "embedding", "wdr": "difference"}


@dataclass
class Setup:
    """The step to measure."""

    hidden_size: int = field(default=768, metadata={"help": "Width d."})
    vocab_size: int = field(default=50257, metadata={"help": "V."})
    num_layers: int = field(default=2, metadata={"help": "Layers of the backbone."})
    batch_size: int = field(default=8, metadata={"help": "Rows."})
    block_size: int = field(default=512, metadata={"help": "Tokens in a row."})
    ngram_size: int = field(default=4, metadata={"help": "N."})
    rounds: int = field(default=3, metadata={"help": "Turns that every variant takes."})
    steps: int = field(default=2, metadata={"help": "Steps timed in a turn, after one that is not."})
    variant: Literal["plain", "simple", "wdr"] | None = field(
        default=None, metadata={"help": "Measure this one here. None: all, in turns."}
    )


def operations(setup: Setup, variant: str) -> float:
    """Return the floating-point operations of a step, forward and backward."""
    d, tokens = setup.hidden_size, setup.batch_size * setup.block_size
    layer = 12 * d * d + 2 * setup.block_size * d  # weights of the products, and the two of attention
    num_heads = 0 if variant == "plain" else setup.ngram_size - 1
    return 6.0 * tokens * (setup.num_layers * layer + num_heads * 2 * d * d + (1 + num_heads) * setup.vocab_size * d)


def measure(setup: Setup) -> dict[str, float]:
    """Time a variant's steps in this process."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = GPT2Config(
        vocab_size=setup.vocab_size,
        n_embd=setup.hidden_size,
        n_layer=setup.num_layers,
        n_head=setup.hidden_size // 64,
        n_positions=setup.block_size,
        use_cache=False,
        attn_pdrop=0.0,  # with dropout, attention on a CPU keeps its square matrices, in every variant
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    model = AutoModelForCausalLM.from_config(config)
    target = VARIANTS[setup.variant or "plain"]
    if target is not None:
        model = MultiTokenForCausalLM.from_base(model, ngram_size=setup.ngram_size, target=target)
    model.to(device).train()  # pyright: ignore[reportArgumentType]
    ids = torch.randint(setup.vocab_size, (setup.batch_size, setup.block_size), device=device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # at rest there are gradients too
    at_rest = peak_memory(device)
    seconds = []
    for _ in range(1 + setup.steps):
        start = settled_time(device)
        model(input_ids=ids, labels=ids).loss.backward()
        seconds.append(settled_time(device) - start)
    return {"seconds": statistics.median(seconds[1:]), "megabytes": (peak_memory(device) - at_rest) / 2**20}


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure one variant, or let all take turns and print the table."""
    (setup,) = parse_settings(Setup)
    if setup.variant is not None:
        print(json.dumps(measure(setup)))
        return
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    fields = [part for name, value in asdict(setup).items() if name != "variant" for part in (f"--{name}", str(value))]
    for _ in range(setup.rounds):
        for variant, turns in results.items():
            command = [sys.executable, __file__, *fields, "--variant", variant]
            turns.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    best = {
        variant: {key: min(turn[key] for turn in turns) for key in ("seconds", "megabytes")}
        for variant, turns in results.items()
    }
    heading = ["variant", "s a step", "x plain", "operations, x plain", "time / operations", "added, MB", "x plain"]
    rows = []
    for variant, figures in best.items():
        time_ratio = figures["seconds"] / best["plain"]["seconds"]
        flop_ratio = operations(setup, variant) / operations(setup, "plain")
        memory_ratio = figures["megabytes"] / best["plain"]["megabytes"]
        cells = [
            f"{figures['seconds']:.2f}",
            f"{time_ratio:.2f}",
            f"{flop_ratio:.2f}",
            f"{time_ratio / flop_ratio:.2f}",
            f"{figures['megabytes']:.0f}",
            f"{memory_ratio:.2f}",
        ]
        rows.append([variant, *cells])
    print(markdown_table(heading, rows))
    print(f"\nwdr / simple: {best['wdr']['seconds'] / best['simple']['seconds']:.3f} x the time")


if __name__ == "__main__":
    main()
