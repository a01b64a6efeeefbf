"""What cosine regularisation adds to a training step of a language model.

    python recipes/benchmarks/cosine_regularization.py recipes/settings/benchmarks/cosine_regularization/measured.yaml

A GPT-2 with random weights takes a step, forward and backward without the optimizer. The regularisation of its output
embeddings takes another, and so does the same formula by automatic differentiation. All take turns. Measured:
recipes/cosine.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from accelerate import PartialState
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from hf_targets import cosine_regularization
from hf_targets.evaluation.timing import median_seconds
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """What is measured."""

    vocab_sizes: list[int] = field(default_factory=lambda: [50257], metadata={"help": "V."})
    hidden_size: int = field(default=768, metadata={"help": "d."})
    num_layers: int = field(default=12, metadata={"help": "Of the model."})
    num_heads: int = field(default=12, metadata={"help": "Attention heads."})
    num_rows: int = field(default=2, metadata={"help": "Texts of a batch."})
    length: int = field(default=512, metadata={"help": "Tokens of a text."})
    bf16: bool = field(default=False, metadata={"help": "Compute the model in bfloat16, by autocast."})
    rounds: int = field(default=3, metadata={"help": "Timed turns of each, after one that is not."})


def by_autograd(weight: Tensor) -> Tensor:
    """Return the regularisation with PyTorch's own gradient."""
    total = F.normalize(weight, dim=1).sum(dim=0)
    return (total @ total - len(weight)) / len(weight) ** 2


def main() -> None:
    """Print a row for each vocabulary."""
    (setup,) = parse_settings(Setup, description=__doc__)
    torch.manual_seed(0)
    device, table = cast(torch.device, PartialState().device), []
    for size in setup.vocab_sizes:
        sizes: dict[str, Any] = {"n_embd": setup.hidden_size, "n_layer": setup.num_layers, "n_head": setup.num_heads}
        sizes |= {"vocab_size": size, "n_positions": setup.length, "bos_token_id": None, "eos_token_id": None}
        model: Any = GPT2LMHeadModel(GPT2Config(**sizes)).to(device)  # pyright: ignore[reportArgumentType]
        model.loss_type = "ForCausalLM"  # which Transformers does not guess from the name of the class, and warns
        weight = model.lm_head.weight
        ids = torch.randint(size, (setup.num_rows, setup.length), device=device)

        def step(model: Any = model, ids: Tensor = ids) -> None:
            model(ids, labels=ids).loss.backward()

        runs = {
            "step": step,
            "ours": lambda weight=weight: cosine_regularization(weight).backward(),
            "autograd": lambda weight=weight: by_autograd(weight).backward(),
        }
        with torch.autocast(device.type, torch.bfloat16, enabled=setup.bf16):
            seconds = median_seconds(runs, setup.rounds, device)
        shares = [f"{seconds[name] / seconds['step']:.2%}" for name in ("ours", "autograd")]
        table.append([f"{size:,}", *(f"{1000 * seconds[name]:.0f}" for name in seconds), *shares])
    tokens = f"{setup.num_rows} x {setup.length} tokens, {'bfloat16' if setup.bf16 else 'float32'}"
    print(f"{setup.num_layers} layers of width {setup.hidden_size}, {tokens}\n")
    heads = ("V", "step, ms", "regularisation, ms", "by autograd, ms", "share of the step", "by autograd")
    print(markdown_table(heads, table))


if __name__ == "__main__":
    main()
