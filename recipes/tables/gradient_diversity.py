"""Measure gradient diversity at the checkpoints of trained models: equation (14) and figure 2 of the WDR paper.

    HF_TARGETS_DATA=data python recipes/tables/gradient_diversity.py \\
        recipes/settings/tables/gradient_diversity/table1_cpu.yaml

The experiment is the output folder of a table, whose runs were trained with a `save_total_limit` that keeps their
checkpoints. All models are measured on the same batches of training text. To measure while training instead, give
MultiTokenTrainer's recipes `--gradient_diversity_steps 100`. Notes: recipes/multitoken.md.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hf_targets import pack_blocks, plot_gradient_diversity
from lab.checkpoint_diversity import checkpoint_diversities, run_checkpoints, tokenizer_of_runs
from lab.results import write_results
from lab.runs import run_folder
from lab.settings import parse_settings
from lab.tables import format_mean, markdown_table
from lab.text import BlockSettings


@dataclass
class Setup(BlockSettings):
    """Which checkpoints are measured, and on what."""

    tables: list[str] = field(
        default_factory=list, metadata={"help": "Output folders of tables; the first that has a run counts."}
    )
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
    plot_gradient_diversity(histories, output / "gradient_diversity.png")
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


if __name__ == "__main__":
    print(main(*parse_settings(Setup, description=__doc__)))
