"""Measure gradient diversity at the checkpoints of trained models: equation (14) and figure 2 of the WDR paper.

    HF_TARGETS_DATA=data python recipes/tables/gradient_diversity.py \\
        recipes/settings/tables/gradient_diversity/table1_cpu.yaml

The experiment is the output folder of a table whose runs kept their checkpoints (`save_total_limit`); all models see
the same batches. In a training: `--gradient_diversity_steps 100`. Notes: recipes/multitoken.md.
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
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LabelSmoother

from hf_targets import gradient_diversity, pack_blocks
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.evaluation.diversity_callback import SmoothedLoss
from hf_targets.figures.learning_curves import plot_logged
from hf_targets.maths.statistics import mean_and_standard_error
from lab.results import write_results
from lab.runs import run_folder
from lab.settings import parse_settings
from lab.tables import format_mean, markdown_table
from lab.text import BlockSettings


@dataclass
class Setup(BlockSettings):
    """Which checkpoints are measured, and on what."""

    tables: list[str] = field(default_factory=list, metadata={"help": "Folders of tables; the first with a run."})
    names: list[str] = field(default_factory=list, metadata={"help": "Rows of the table, such as wdr-4."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Seeds that they were trained with."})
    num_batches: int = field(default=8, metadata={"help": "Batches of training text at each checkpoint."})
    batch_size: int = field(default=16, metadata={"help": "Rows in a batch; diversity is at least 1 over it."})
    dropout: bool = field(default=True, metadata={"help": "Draw dropout, as in training."})
    label_smoothing_factor: float = field(
        default=0.0, metadata={"help": "Share of the uniform distribution in the targets, as in the training."}
    )
    output_dir: str = field(default="runs/gradient_diversity", metadata={"help": "Folder of the results."})


def main(setup: Setup) -> str:
    """Measure each run's checkpoints, leave the figure and the numbers, and return the table."""
    runs = {name: [find(setup.tables, run_folder(name, seed)) for seed in setup.seeds] for name in setup.names}
    checkpoints = {name: [run_checkpoints(run) for run in seeds] for name, seeds in runs.items()}
    tokenizer = tokenizer_of_runs([run for seeds in runs.values() for run in seeds])
    blocks = pack_blocks(setup.load()["train"], tokenizer, setup.block_size)
    sizes = {"num_batches": setup.num_batches, "batch_size": setup.batch_size, "dropout": setup.dropout}
    histories = {
        name: [
            checkpoint_diversities(found, blocks, label_smoothing=setup.label_smoothing_factor, **sizes)
            for found in seeds
        ]
        for name, seeds in checkpoints.items()
    }
    output = Path(setup.output_dir)
    write_results(output, {"settings": vars(setup), "histories": histories})
    plot_logged(histories, "gradient_diversity", "gradient diversity (eq. 14)", output / "gradient_diversity.png")
    steps = sorted({entry["step"] for seeds in histories.values() for seed in seeds for entry in seed})
    lines = []
    for name, seeds in histories.items():
        at = [[one["gradient_diversity"] for seed in seeds for one in seed if one["step"] == step] for step in steps]
        lines.append([name, *(format_mean(values, digits=4) for values in at)])
    return f"{markdown_table(['model', *(f'step {step}' for step in steps)], lines)}\n\nFigure and numbers: {output}"


def find(tables: list[str], run: str) -> Path:
    """Return the run's folder in the first experiment that has it, or in the last one."""
    folders = [Path(one, run) for one in tables]
    return next((folder for folder in folders if folder.is_dir()), folders[-1])


def run_checkpoints(run: Path) -> dict[int, Path]:
    """Return the whole checkpoints in a run's folder by their steps, the earliest first."""
    whole = [path.parent for path in run.glob(f"checkpoint-*/{TRAINER_STATE_NAME}")]  # Trainer writes its state last
    numbered = {int(path.name.partition("-")[2]): path for path in whole}
    if not numbered:
        raise ValueError(f"{run} has no whole checkpoints; train it with a save_total_limit that keeps them")
    return dict(sorted(numbered.items()))


def tokenizer_of_runs(runs: list[Path]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of runs, which they must share, so that all are measured on the same tokens."""
    first, *others = [AutoTokenizer.from_pretrained(run) for run in runs]
    if any(tokenizer_fingerprint(other) != tokenizer_fingerprint(first) for other in others):
        raise ValueError("runs must have the same tokenizer, to be measured on the same tokens; measure one at a time")
    return first


def load_causal(folder: Path) -> Any:
    """Return the causal model of a checkpoint."""
    model = repair_reformer(AutoModelForCausalLM.from_pretrained(folder))
    if type(model).__name__ not in (model.config.architectures or []):
        raise ValueError(f"next tokens take a causal model, and {folder} is a {model.config.architectures}")
    return model


def checkpoint_diversities(
    checkpoints: Mapping[int, Path],
    blocks: Dataset,
    *,
    num_batches: int,
    batch_size: int,
    seed: int = 0,
    dropout: bool = True,
    label_smoothing: float = 0.0,
) -> list[dict[str, float]]:
    """Return the mean gradient diversity of batches at each checkpoint, as entries of a log.

    All checkpoints, and all runs with the same blocks (of one length) and seed, are measured on the same batches.

    Returns: For each checkpoint `step`, `gradient_diversity`, and `standard_error` over the batches.
    """
    count = num_batches * batch_size
    if len(blocks) < count:
        raise ValueError(f"the batches need {count} blocks, and the text has {len(blocks)}; lower num_batches")
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed))[:count]
    columns = blocks.select(order.tolist()).with_format("torch").select_columns(["input_ids", "labels"])
    batches: list[Any] = [columns[start : start + batch_size] for start in range(0, count, batch_size)]
    entries = []
    for step, folder in checkpoints.items():
        model, smoothed = load_causal(folder), {}
        if label_smoothing and getattr(model, "smooths_labels", False):
            smoothed["label_smoothing"] = label_smoothing
        elif label_smoothing:
            model = SmoothedLoss(model, partial(LabelSmoother(epsilon=label_smoothing), shift_labels=True))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            values = [gradient_diversity(model, {**batch, **smoothed}, dropout=dropout) for batch in batches]
        mean, error = mean_and_standard_error(values)
        entries.append({"step": step, "gradient_diversity": mean, "standard_error": error})
    return entries


if __name__ == "__main__":
    print(main(*parse_settings(Setup, description=__doc__)))
