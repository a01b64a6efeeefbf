"""Time and peak memory of a training step: plain Transformers loss, simple N-gram and word differences, in one run.

    python recipes/benchmarks/train_step.py recipes/settings/benchmarks/train_step/measured.yaml

Times are of one process in which the variants take turns, so that ratios hold on a busy machine too: "x plain" is the
median over rounds of the ratio within a round. "bfloat16" is autocast, with weights in float32.
Memory is what a step adds to the process (on CUDA: to the allocated memory) above the model with gradients at rest. A
process of its own measures it for every variant.
Operations are counted by formula, 2 a multiply-add: 6 times each matrix product's weights and tokens.
Measured: recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import json
import resource
import statistics
import subprocess
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GPT2Config, MarianConfig

from hf_targets import MultiTokenForCausalLM, MultiTokenForSeq2SeqLM
from hf_targets.evaluation.timing import settled_time
from lab.settings import parse_settings
from lab.tables import markdown_table

VARIANTS = {"plain": None, "simple": "embedding", "wdr": "difference"}
DTYPES = ("float32", "bfloat16")


@dataclass
class Setup:
    """The step to measure."""

    hidden_size: int = field(default=768, metadata={"help": "Width d."})
    vocab_size: int = field(default=50257, metadata={"help": "V."})
    num_layers: int = field(default=2, metadata={"help": "Layers of the backbone; of its encoder, and of its decoder."})
    architecture: Literal["gpt2", "marian"] = field(
        default="gpt2", metadata={"help": "Of the backbone: causal, or an encoder and a decoder."}
    )
    batch_size: int = field(default=8, metadata={"help": "Rows."})
    block_size: int = field(default=512, metadata={"help": "Tokens in a row."})
    ngram_size: int = field(default=4, metadata={"help": "N."})
    rounds: int = field(
        default=3, metadata={"help": "Rounds in which every variant takes a step, after one not timed."}
    )
    dtype: Literal["float32", "bfloat16"] | None = field(default=None, metadata={"help": "None: both."})
    variant: Literal["plain", "simple", "wdr"] | None = field(
        default=None, metadata={"help": "Measure the memory of this one here. None: time and memory of all."}
    )


def operations(setup: Setup, variant: str) -> float:
    """Return the floating-point operations of a step, forward and backward."""
    d, tokens = setup.hidden_size, setup.batch_size * setup.block_size
    layer = 12 * d * d + 2 * setup.block_size * d  # weights of the products, and the two of attention
    if setup.architecture == "marian":  # an encoder's layer, and a decoder's, which attends to the source too
        layer += layer + 4 * d * d + 2 * setup.block_size * d
    num_heads = 0 if variant == "plain" else setup.ngram_size - 1
    return 6.0 * tokens * (setup.num_layers * layer + num_heads * 2 * d * d + (1 + num_heads) * setup.vocab_size * d)


def make_model(setup: Setup, variant: str, device: torch.device) -> torch.nn.Module:
    """Return a model for training, with gradients as it has them between steps."""
    torch.manual_seed(0)
    no_dropout: Any = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    size, layers, heads = setup.hidden_size, setup.num_layers, setup.hidden_size // 64
    # with dropout, attention on a CPU keeps its square matrices, in every variant
    if setup.architecture == "gpt2":
        no_dropout: Any = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
        sizes: Any = {"n_embd": size, "n_layer": layers, "n_head": heads, "n_positions": setup.block_size}
        config: Any = GPT2Config(vocab_size=setup.vocab_size, use_cache=False, **sizes, **no_dropout)
    else:
        no_dropout = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
        sizes = {"d_model": size, "max_position_embeddings": setup.block_size}
        for part in ("encoder", "decoder"):
            sizes |= {f"{part}_layers": layers, f"{part}_attention_heads": heads, f"{part}_ffn_dim": 4 * size}
        ids: Any = {"vocab_size": setup.vocab_size, "pad_token_id": 0, "decoder_start_token_id": 0}
        config = MarianConfig(**ids, **sizes, **no_dropout)
    is_pair = setup.architecture == "marian"
    with device:
        model = (AutoModelForSeq2SeqLM if is_pair else AutoModelForCausalLM).from_config(config)
    target, wrapper = VARIANTS[variant], MultiTokenForSeq2SeqLM if is_pair else MultiTokenForCausalLM
    if target is not None:
        model = wrapper.from_base(model, ngram_size=setup.ngram_size, target=target)
    model.train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def step(setup: Setup, model: torch.nn.Module, dtype: str, device: torch.device) -> float:
    """Take a step, and return its seconds."""
    ids = torch.randint(setup.vocab_size, (setup.batch_size, setup.block_size), device=device)
    start = settled_time(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return settled_time(device) - start


def seconds_of_steps(setup: Setup, dtype: str, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of a step of every variant, in every round but the first."""
    models = {variant: make_model(setup, variant, device) for variant in VARIANTS}
    rounds = [
        {name: step(setup, model, dtype, device) for name, model in models.items()} for _ in range(1 + setup.rounds)
    ]
    return {name: [seconds[name] for seconds in rounds[1:]] for name in models}


def added_memory(setup: Setup, device: torch.device) -> float:
    """Return the megabytes that steps of `variant` add to this process."""
    assert setup.variant is not None and setup.dtype is not None
    model = make_model(setup, setup.variant, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    at_rest = peak_memory(device)
    for _ in range(2):
        step(setup, model, setup.dtype, device)
    return (peak_memory(device) - at_rest) / 2**20


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_of_processes(setup: Setup, dtype: str) -> dict[str, float]:
    """Return the megabytes that steps of every variant add, each in a process of its own."""
    own = {name: value for name, value in asdict(setup).items() if name not in ("variant", "dtype")}
    fields = [part for name, value in own.items() for part in (f"--{name}", str(value))]
    results = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, *fields, "--variant", variant, "--dtype", dtype]
        results[variant] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return results


def main() -> None:
    """Measure one variant's memory, or let all take turns and print the table."""
    (setup,) = parse_settings(Setup, description=__doc__)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if setup.variant is not None:
        print(json.dumps(added_memory(setup, device)))
        return
    heading = ["type", "variant", "s a step", "x plain", "operations, x plain", "added, MB", "x plain"]
    rows, dtypes = [], DTYPES if setup.dtype is None else (setup.dtype,)
    # before any step here: on Linux the peak of a new process begins at the size of the one that starts it
    megabytes_of = {dtype: memory_of_processes(setup, dtype) for dtype in dtypes}
    for dtype in dtypes:
        megabytes, seconds = megabytes_of[dtype], seconds_of_steps(setup, dtype, device)
        for variant, times in seconds.items():
            ratios = [ours / plain for ours, plain in zip(times, seconds["plain"], strict=True)]
            cells = [
                f"{statistics.median(times):.2f}",
                f"{statistics.median(ratios):.2f}",
                f"{operations(setup, variant) / operations(setup, 'plain'):.2f}",
                f"{megabytes[variant]:.0f}",
                f"{megabytes[variant] / megabytes['plain']:.2f}" if megabytes["plain"] else "",
            ]
            rows.append([dtype, variant, *cells])
    print(markdown_table(heading, rows))


if __name__ == "__main__":
    main()
