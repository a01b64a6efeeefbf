"""The cross-entropy of hidden states alone, with its gradients: all logits at once, ours, Liger's, Cut Cross-Entropy.

    python recipes/benchmarks/losses.py recipes/settings/benchmarks/losses/measured.yaml

Liger and Cut Cross-Entropy have kernels for a GPU alone, and are measured there if `liger-kernel` and
`cut-cross-entropy` are installed. The error is that of the gradients against float32's, relative to their norm; the
larger of the two. Memory is what a call holds above the states and the matrix, its gradients included.
Measured: recipes/gpu.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_targets.evaluation.timing import median_seconds
from hf_targets.maths.losses import weighted_cross_entropy
from lab.memory import added_bytes
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """The loss to measure."""

    num_states: int = field(default=4 * 4096, metadata={"help": "Hidden states, N predictions of each position."})
    hidden_size: int = field(default=2048, metadata={"help": "Width d."})
    vocab_size: int = field(default=50257, metadata={"help": "V."})
    rounds: int = field(default=5, metadata={"help": "Timed turns of each, after one that is not."})


def whole_loss(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of all logits at once, as Transformers does."""
    return F.cross_entropy((hidden @ matrix.T).float(), targets)


def our_loss(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
    """Return it by chunks, as models with heads do."""
    weights = torch.full((len(hidden),), 1 / len(hidden), device=hidden.device)
    return weighted_cross_entropy(hidden, matrix, targets, weights)[0]


def loss_functions(device: torch.device) -> dict[str, Callable[..., Tensor]]:
    """Return the losses that can be had here."""
    functions: dict[str, Callable[..., Tensor]] = {"all logits": whole_loss, "hf_targets": our_loss}
    modules = {"Liger": "liger_kernel.transformers", "Cut Cross-Entropy": "cut_cross_entropy"}
    for name, module in modules.items() if device.type == "cuda" else ():
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        if name == "Liger":
            liger = found.LigerFusedLinearCrossEntropyLoss()
            functions[name] = lambda hidden, matrix, targets, liger=liger: liger(matrix, hidden, targets)
        else:
            functions[name] = found.linear_cross_entropy
    return functions


def gradients(loss: Callable[..., Tensor], hidden: Tensor, matrix: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of a mean loss by hidden states and output matrix."""
    return torch.autograd.grad(loss(hidden, matrix, targets), (hidden, matrix))


def measure(setup: Setup, device: torch.device) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the seconds, the megabytes and the error of each loss, in bfloat16."""
    torch.manual_seed(0)
    hidden = torch.randn(setup.num_states, setup.hidden_size, device=device).bfloat16().requires_grad_()
    matrix = (0.02 * torch.randn(setup.vocab_size, setup.hidden_size, device=device)).bfloat16().requires_grad_()
    targets = torch.randint(setup.vocab_size, (setup.num_states,), device=device)
    states, weights = (one.detach().float().requires_grad_() for one in (hidden, matrix))
    exact = gradients(whole_loss, states, weights, targets)
    runs = {name: partial(gradients, loss, hidden, matrix, targets) for name, loss in loss_functions(device).items()}
    errors = {
        name: max(float((ours - own).norm() / own.norm()) for ours, own in zip(run(), exact, strict=True))
        for name, run in runs.items()
    }
    del exact
    megabytes = {name: added_bytes(run, device) / 2**20 for name, run in runs.items()}
    return median_seconds(runs, setup.rounds, device), megabytes, errors


def main(setup: Setup) -> None:
    """Print a table."""
    seconds, megabytes, errors = measure(setup, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    first = seconds["all logits"]
    rows = [
        [name, f"{1000 * value:.1f}", f"{value / first:.2f}", f"{megabytes[name]:.0f}", f"{errors[name]:.2%}"]
        for name, value in seconds.items()
    ]
    print(markdown_table(["loss", "ms", "x all logits", "added, MB", "error of gradients"], rows))


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
