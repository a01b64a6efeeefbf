"""What sentence curves and heads cost in Gaussian diffusion: training steps and decoding, against plain Difformer.

    python recipes/benchmarks/gaussian_diffusion.py recipes/settings/benchmarks/gaussian_diffusion/measured.yaml

A model of the size published for IWSLT14 (table 2 of the sentence curve paper) with random weights, on texts of one
length. All variants take turns, so that ratios hold on a busy machine too. A step is forward and backward, without the
optimizer, and in each the decoder reads a prediction of its own. Decoding writes one text for each source, of the
source's length. In table 4 of the paper curves with N_ratio = 2 take 2.7 times as long to train on IWSLT14, and 9.5
times as long to decode; training holds 6.9 GB in place of 5.8. Memory is what a step holds above the
weights. Measured: recipes/gaussian_diffusion.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hf_targets import DifformerConfig, DifformerForConditionalGeneration
from hf_targets.evaluation.timing import median_seconds
from lab.memory import added_bytes
from lab.settings import parse_settings
from lab.tables import markdown_table

ROWS = {
    "plain": {},
    "heads, N = 3": {"multitoken": {"ngram_size": 3}},
    "curve, N / L = 2": {"curve": {"num_control_points_ratio": 2.0, "degree_ratio": 0.01}},
}


@dataclass
class Setup:
    """What is measured."""

    rows: dict[str, Any] = field(
        default_factory=lambda: ROWS,
        metadata={"help": "Names of models, the plain one first, and fields of their DifformerConfig."},
    )
    lengths: list[int] = field(
        default_factory=lambda: [24], metadata={"help": "Tokens of a text and of its source, L."}
    )
    num_tokens: int = field(default=768, metadata={"help": "Tokens of the texts of a batch; rows are these over L."})
    hidden_size: int = field(default=512, metadata={"help": "Of the model."})
    feed_forward_size: int = field(default=1024, metadata={"help": "Width of the feed-forward layers, d_ff."})
    num_layers: int = field(default=6, metadata={"help": "Of the encoder, and of the decoder."})
    num_heads: int = field(default=4, metadata={"help": "Attention heads."})
    vocab_size: int = field(default=10000, metadata={"help": "V."})
    num_reverse_steps: int = field(default=20, metadata={"help": "Steps from noise to text; the last 5 are left out."})
    bf16: bool = field(default=False, metadata={"help": "Compute in bfloat16, by autocast."})
    rounds: int = field(default=3, metadata={"help": "Timed turns of each, after one that is not."})

    def common(self) -> dict[str, Any]:
        """Return the fields that all rows have unless they say otherwise."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.feed_forward_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "max_position_embeddings": 2 * max(self.lengths),
            "dropout": 0.0,
        }


def make_model(setup: Setup, row: Mapping[str, Any], device: torch.device) -> DifformerForConditionalGeneration:
    """Return the model of a row, with random weights."""
    with device:
        return DifformerForConditionalGeneration(DifformerConfig(vocab_size=setup.vocab_size, **row))


def train_step(model: DifformerForConditionalGeneration, ids: torch.Tensor) -> None:
    """Go forward and backward."""
    model.train()
    model(ids, labels=ids, self_condition=True).loss.backward()
    model.zero_grad()


def work_factor(row: Mapping[str, Any]) -> float:
    """Return how many positions the decoder of a row has for each token: N_ratio times K."""
    curve = row.get("curve")
    return 1.0 if curve is None else curve.get("num_control_points_ratio", 2.0) * curve.get("num_curves", 1)


def main(setup: Setup) -> None:
    """Print a table for each length."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = {name: {**setup.common(), **row} for name, row in setup.rows.items()}
    models = {name: make_model(setup, row, device) for name, row in rows.items()}
    plain = next(iter(models))
    for length in setup.lengths:
        ids = torch.randint(5, setup.vocab_size, (max(1, setup.num_tokens // length), length), device=device)
        options = {"lengths": torch.full((len(ids),), length, device=device), "selection": "confidence"}
        options["num_reverse_steps"] = setup.num_reverse_steps
        with torch.autocast(device.type, torch.bfloat16, enabled=setup.bf16):
            steps = {name: partial(train_step, model, ids) for name, model in models.items()}
            training = median_seconds(steps, setup.rounds, device)
            memory = {name: added_bytes(step, device) / 2**20 for name, step in steps.items()}
            texts = {name: partial(model.eval().generate, ids, **options) for name, model in models.items()}
            decoding = median_seconds(texts, setup.rounds, device)
        table = []
        for name, row in rows.items():
            ratios = [seconds[name] / seconds[plain] for seconds in (training, decoding)]
            cells = [
                f"{1000 * training[name]:.0f}",
                f"{memory[name]:.0f}",
                f"{1000 * decoding[name]:.0f}",
                *(f"{x:.2f}" for x in ratios),
            ]
            table.append([name, *cells, *(f"{x / work_factor(row):.2f}" for x in ratios)])
        print(f"\n{len(ids)} texts of {length} tokens, {'bfloat16' if setup.bf16 else 'float32'}\n")
        heads = ("step, ms", "step, MB", "decoding, ms", "step, x plain", "decoding, x plain")
        print(markdown_table(("model", *heads, "step / (N_ratio K)", "decoding / (N_ratio K)"), table), flush=True)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
