"""What sentence curves cost: steps and sampling against plain MDLM, the cached sampler, batches of many lengths.

    python recipes/benchmarks/curves.py recipes/settings/benchmarks/curves/measured.yaml

A model of the size published for LM1B (139M parameters) with random weights: time does not depend on their values.
All variants share their weights and take turns, so that ratios hold on a busy machine too. A step is forward and
backward, without the optimizer, whose time is the same for all. Measured: recipes/masked_diffusion.md.
`--parts train sample evaluations lengths` chooses among the four.
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

from hf_targets import CurveConfig, MdlmConfig, MdlmForMaskedDiffusion, SentenceCurve
from hf_targets.evaluation.timing import median_seconds, settled_time
from lab.settings import parse_settings

PARTS = ("train", "sample", "evaluations", "lengths")


@dataclass
class Setup:
    """What is measured."""

    parts: list[str] = field(default_factory=lambda: list(PARTS), metadata={"help": "Parts to run."})
    lengths: list[int] = field(default_factory=lambda: [32, 128, 256], metadata={"help": "Tokens of a text, L."})
    ratios: list[float] = field(
        default_factory=lambda: [0.2, 1.0, 2.0, 3.0], metadata={"help": "Control points per token, N / L."}
    )
    degree_ratio: float = field(default=0.1, metadata={"help": "Eta_ratio."})
    hidden_size: int = field(default=768, metadata={"help": "Of the model."})
    num_layers: int = field(default=12, metadata={"help": "Of the model."})
    vocab_size: int = field(default=30522, metadata={"help": "V."})
    num_tokens: int = field(default=512, metadata={"help": "Tokens of a batch; rows are these over L."})
    num_steps: int = field(default=2, metadata={"help": "Evaluations of the network in a timed sampling."})
    rounds: int = field(default=3, metadata={"help": "Timed turns of each, after one that is not."})
    evaluation_steps: list[int] = field(default_factory=lambda: [32, 128, 512, 1000], metadata={"help": "T of counts."})
    bf16: bool = field(default=False, metadata={"help": "Whether to use bfloat16 autocast, with weights in float32."})
    num_mixed_rows: int = field(default=64, metadata={"help": "Rows of the batch of many lengths."})
    max_mixed_length: int = field(default=1024, metadata={"help": "Its width; lengths are from a 16th of it to it."})
    mixed_size: int = field(default=64, metadata={"help": "Width of its embeddings."})

    def __post_init__(self) -> None:
        if unknown := set(self.parts) - set(PARTS):
            raise ValueError(f"parts must be of {', '.join(PARTS)}, got {', '.join(unknown)}")


def make_models(setup: Setup, length: int) -> dict[str, MdlmForMaskedDiffusion]:
    """Return plain MDLM and its curve variants, with the same weights."""
    curves: dict[str, CurveConfig | None] = {"plain": None}
    for layers in ("input", "hidden"):
        for ratio in setup.ratios:
            fields: dict[str, Any] = {"num_control_points_ratio": ratio, "degree_ratio": setup.degree_ratio}
            curves[f"{layers} {ratio:g}"] = CurveConfig(place=layers, rank_deficient="pseudo_inverse", **fields)
    models, device = {}, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name, curve in curves.items():
        config = MdlmConfig(
            vocab_size=setup.vocab_size,
            hidden_size=setup.hidden_size,
            num_hidden_layers=setup.num_layers,
            num_attention_heads=max(1, setup.hidden_size // 64),
            max_position_embeddings=length,
            dropout=0.0,
            curve=curve,
        )
        with torch.device("meta" if models else device):
            models[name] = MdlmForMaskedDiffusion(config)
        if name != "plain":
            models[name].load_state_dict(models["plain"].state_dict(), assign=True)
        else:
            for parameter in models["plain"].parameters():
                if not parameter.any():  # a new model's modulation and output are 0
                    torch.nn.init.normal_(parameter, std=0.02)
    return models


def train_step(model: MdlmForMaskedDiffusion, canvas: torch.Tensor, ids: torch.Tensor) -> None:
    """Go forward and backward; the times are fixed, so that all variants have the same masks."""
    model.train()
    model(canvas, labels=ids, timesteps=torch.full((len(ids),), 0.5, device=ids.device)).loss.backward()
    model.zero_grad()


def seconds_of(setup: Setup, length: int, part: str, models: Mapping[str, MdlmForMaskedDiffusion]) -> dict[str, float]:
    """Return each variant's seconds of a training step (`train`), or of sampling a text (`sample`)."""
    device = models["plain"].device
    ids = torch.randint(setup.vocab_size - 1, (max(1, setup.num_tokens // length), length), device=device)
    canvas = ids.masked_fill(torch.arange(length, device=device) % 2 == 0, setup.vocab_size - 1)
    options: dict[str, Any] = {"max_length": length, "num_steps": setup.num_steps, "sampler": "ancestral"}
    runs = {name: partial(train_step, model, canvas, ids) for name, model in models.items()}
    if part == "sample":
        runs = {name: partial(model.eval().generate, batch_size=len(ids), **options) for name, model in models.items()}
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=setup.bf16):
        return median_seconds(runs, setup.rounds, device)


def print_ratios(what: str, seconds: dict[str, float], length: int) -> None:
    """Print each variant's time over the plain model's, and over that and N_ratio."""
    print(f"\n{what}, L = {length}: plain {1000 * seconds['plain']:.0f} ms\n")
    print("| place, N_ratio | x plain | x plain / N_ratio |\n| --- | ---: | ---: |")
    for name, value in seconds.items():
        if name != "plain":
            ratio = value / seconds["plain"]
            print(f"| {name} | {ratio:.2f} | {ratio / float(name.split()[1]):.2f} |", flush=True)


def print_evaluations(steps_wanted: list[int], batch_size: int = 16) -> None:
    """Print evaluations of the network, which do not depend on it, for texts of 128 tokens by number of steps."""
    config = MdlmConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, cond_dim=8)
    model = MdlmForMaskedDiffusion(config).eval()
    print(f"\nEvaluations a row, {batch_size} rows of 128 tokens\n")
    print("| sampler | steps | evaluations | tokens a forward |\n| --- | ---: | ---: | ---: |")
    wanted: list[tuple[str, int | None]] = [(name, n) for n in steps_wanted for name in ("ancestral", "cached")]
    for sampler, steps in [*wanted, ("first_hitting", None)]:
        options = {} if steps is None else {"num_steps": steps}
        output: Any = model.generate(
            batch_size=batch_size,
            max_length=128,
            sampler=sampler,
            generator=torch.Generator().manual_seed(0),
            return_dict_in_generate=True,
            **options,
        )
        rows = output.num_row_evaluations / batch_size
        print(f"| {sampler} | {steps or ''} | {rows:.1f} | {output.tokens_per_forward:.2f} |")


def print_mixed_lengths(setup: Setup) -> None:
    """Print the first and the later mappings of a batch of many lengths to control points, and of its rows alone."""
    device, width = torch.device("cuda" if torch.cuda.is_available() else "cpu"), setup.max_mixed_length
    lengths = torch.randint(max(1, width // 16), width + 1, (setup.num_mixed_rows,), device=device)
    lengths[0] = width
    rows = torch.randn(setup.num_mixed_rows, width, setup.mixed_size, device=device)
    print(f"\n{len(rows)} rows of {int(lengths.min())} to {width} tokens, {setup.mixed_size} wide, to control points\n")
    print(
        "| curve | first, s | later, s | rows one by one, unpadded, s | x batch |\n| --- | ---: | ---: | ---: | ---: |"
    )
    curves: dict[str, dict[str, Any]] = {
        "degree 3": {"degree": 3},
        "degree_ratio 0.01": {"degree_ratio": 0.01},
        "degree_ratio 0.1, pseudo-inverse": {"rank_deficient": "pseudo_inverse"},
    }
    for name, fields in curves.items():
        curve = SentenceCurve(CurveConfig(**fields))

        def one_by_one(curve: SentenceCurve = curve) -> None:
            for row, length in zip(rows, lengths.tolist(), strict=True):
                curve.to_control_points(row[None, :length])

        start = settled_time(device)
        curve.to_control_points(rows, lengths)
        first = settled_time(device) - start
        runs = {"batch": partial(curve.to_control_points, rows, lengths), "alone": one_by_one}
        seconds = median_seconds(runs, setup.rounds, device)
        ratio = seconds["alone"] / seconds["batch"]
        print(f"| {name} | {first:.1f} | {seconds['batch']:.3f} | {seconds['alone']:.3f} | {ratio:.2f} |", flush=True)


def main(setup: Setup) -> None:
    """Measure the parts asked for."""
    torch.manual_seed(0)
    if "lengths" in setup.parts:
        print_mixed_lengths(setup)
    for length in setup.lengths if {"train", "sample"} & set(setup.parts) else []:
        models = make_models(setup, length)
        for part, heading in (("train", "A training step"), ("sample", "Sampling")):
            if part in setup.parts:
                print_ratios(heading, seconds_of(setup, length, part, models), length)
    if "evaluations" in setup.parts:
        print_evaluations(setup.evaluation_steps)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
