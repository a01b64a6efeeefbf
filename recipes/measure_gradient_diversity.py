"""Measure gradient diversity at the checkpoints of trained models: equation (14) and figure 2 of the WDR paper.

    HF_TARGETS_DATA=data python recipes/measure_gradient_diversity.py runs/train_small_lm/table1_cpu \\
        --names simple-4 wdr-4 --dataset ptb --block_size 64

The experiment is the output folder of train_small_lm.py or another recipe, trained with a `save_total_limit` that keeps
its checkpoints. All models are measured on the same batches of training text. To measure while training instead, give
MultiTokenTrainer's recipes `--gradient_diversity_steps 100`. In seconds: train train_small_lm/smoke.yaml, then
`.../smoke.yaml`. Notes: recipes/multitoken.md.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hf_targets import (
    BlockSettings,
    checkpoint_diversities,
    field_of,
    parse_settings,
    plot_gradient_diversity,
    run_checkpoints,
    write_json,
)
from hf_targets.evaluation.checkpoint_diversity import load_causal, tokenizer_of_runs
from hf_targets.markdown import markdown_table
from hf_targets.maths.statistics import format_mean
from hf_targets.training.outputs import check_output_folder
from hf_targets.training.seeds import check_seeds, run_folder


@dataclass
class Setup(BlockSettings):
    """Which checkpoints are measured, and on what."""

    leading_setting: ClassVar[str] = "experiments"

    experiments: list[str] = field(
        default_factory=list,
        metadata={"help": "Output folders of a recipe; the first that has a run counts."},
    )
    names: list[str] = field(default_factory=list, metadata={"help": "Models of the experiment, such as wdr-4."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Seeds that they were trained with."})
    dataset: str = field_of(BlockSettings, "dataset", "ptb")
    block_size: int = field_of(BlockSettings, "block_size", 64)
    num_batches: int = field(default=8, metadata={"help": "Batches of training text at each checkpoint."})
    batch_size: int = field(default=16, metadata={"help": "Rows in a batch; diversity is at least 1 over it."})
    dropout: bool = field(default=True, metadata={"help": "Draw dropout, as in training."})
    label_smoothing_factor: float = field(
        default=0.0, metadata={"help": "Share of the uniform distribution in the targets, as in the training."}
    )
    output_dir: str = field(default="runs/measure_gradient_diversity", metadata={"help": "Folder of the results."})

    def __post_init__(self) -> None:
        if not self.experiments or not self.names:
            raise ValueError("give the output folder of an experiment, and --names of its models")
        check_seeds(self.seeds)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"names must differ, as each is a row of the table, got {' '.join(self.names)}")
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(f"label_smoothing_factor must be in [0, 1), got {self.label_smoothing_factor}")
        for name, least in (("num_batches", 1), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")


def folder_with(experiments: list[str], name: str, seed: int) -> Path:
    """Return the first experiment that has a run, or the last one."""
    having = [Path(one) for one in experiments if Path(one, run_folder(name, seed)).is_dir()]
    return (having or [Path(experiments[-1])])[0]


def main() -> None:
    """Measure each run's checkpoints, print the table, and leave the figure and the numbers."""
    (setup,) = parse_settings(Setup)
    runs = [(name, seed, folder_with(setup.experiments, name, seed)) for name in setup.names for seed in setup.seeds]
    checkpoints = [run_checkpoints(folder, name, seed) for name, seed, folder in runs]
    first = {
        folder / run_folder(name, seed): next(iter(found.values()))
        for (name, seed, folder), found in zip(runs, checkpoints, strict=True)
    }
    tokenizer = tokenizer_of_runs(first, setup.block_size)
    output = Path(setup.output_dir)
    check_output_folder(output)
    blocks = setup.blocks(setup.load(), tokenizer)["train"]
    histories: dict[str, list[Any]] = {name: [] for name in setup.names}
    for (name, _, _), found in zip(runs, checkpoints, strict=True):
        histories[name].append(
            checkpoint_diversities(
                found,
                load_causal,
                blocks,
                num_batches=setup.num_batches,
                batch_size=setup.batch_size,
                dropout=setup.dropout,
                label_smoothing=setup.label_smoothing_factor,
            )
        )
    write_json(output / "gradient_diversity.json", {"settings": asdict(setup), "histories": histories})
    plot_gradient_diversity(histories, output / "gradient_diversity.png")
    steps = sorted({entry["step"] for seeds in histories.values() for seed in seeds for entry in seed})
    lines = [[name, *(cell(seeds, step) for step in steps)] for name, seeds in histories.items()]
    print(f"{markdown_table(['model', *(f'step {step}' for step in steps)], lines)}\n\nFigure and numbers: {output}")


def cell(seeds: list[Any], step: int) -> str:
    """Return the mean over seeds at a step."""
    return format_mean([one["gradient_diversity"] for seed in seeds for one in seed if one["step"] == step], digits=4)


if __name__ == "__main__":
    main()
