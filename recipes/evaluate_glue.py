"""Fine-tune pre-trained models on tasks of GLUE, and print their scores on the validation splits in one table.

The models that recipes/train_masked_lm.py left, on the four tasks that are read from files:

    HF_TARGETS_DATA=data python recipes/evaluate_glue.py recipes/settings/evaluate_glue/crammed_cpu.yaml

On all tasks that the earlier paper on word differences reports: `.../paper.yaml`. In a minute, on
the first examples of a task: `.../smoke.yaml`. Notes: recipes/masked_models.md.
"""

from dataclasses import asdict, dataclass, field

from transformers import TrainingArguments

from hf_targets import (
    GLUE_TASKS,
    Experiment,
    ExperimentSettings,
    GlueRun,
    format_column_differences,
    format_columns,
    glue_table,
    parse_settings,
    pretrained_of,
    read_glue_results,
    write_json,
)
from hf_targets.training.settings import parse_mapping

RESULTS = "results.json"


@dataclass
class Setup(ExperimentSettings):
    """Which models are fine-tuned, and on what."""

    models: str = field(
        default="{}",
        metadata={
            "help": "JSON: names of rows, and for each a name on the Hub or a folder, in which {seed} stands for the "
            "seed that it was pre-trained with. The first is what the others are compared with."
        },
    )
    tasks: list[str] = field(
        default_factory=lambda: ["cola", "mrpc", "rte", "sst2"],
        metadata={"help": f"Of {', '.join(GLUE_TASKS)}."},
    )
    max_length: int = field(
        default=128, metadata={"help": "Tokens of an example, special ones included; the longer of its texts is cut."}
    )
    max_train_examples: int | None = field(
        default=None, metadata={"help": "Keep the first so many examples of each training split; None keeps all."}
    )

    model_fields: str = field(
        default="{}",
        metadata={"help": 'JSON: fields of the configurations to change: {"classifier_pooling": "cls"}.'},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tasks or set(self.tasks) - GLUE_TASKS.keys() or len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks must be some of {', '.join(GLUE_TASKS)}, each once, got {self.tasks}")


def main() -> None:
    """Fine-tune each model on each task with each seed, and print the table."""
    setup, args = parse_settings(Setup, TrainingArguments)
    models, fields = pretrained_of(setup.models, setup.seeds), parse_mapping(setup.model_fields, "model_fields")
    planned = {
        (name, seed, task): GlueRun(models[name][seed], task, setup.max_length, setup.max_train_examples, fields)
        for seed in setup.seeds
        for name in models
        for task in setup.tasks
    }
    experiment = Experiment(setup, args, outputs=(RESULTS,))
    experiment.begin()
    file = experiment.folder / RESULTS
    results = read_glue_results(file) if experiment.resume else []
    done = {(row["name"], row["seed"], row["task"]) for row in results}
    for number, ((name, seed, task), run) in enumerate(planned.items(), start=1):
        if (name, seed, task) in done:
            continue
        scores = run.fine_tune(args, seed)
        results.append({"name": name, "seed": seed, "task": task, **scores})
        if args.process_index == 0:
            write_json(file, {"settings": {**asdict(setup), **args.to_sanitized_dict()}, "rows": results})
            print(f"run {number}/{len(planned)}: {name}, seed {seed}, {task}  score {scores['score']:.2f}", flush=True)
    if args.process_index:
        return
    table = glue_table(results, list(models), setup.seeds, setup.tasks)
    shown = "\n\n".join(filter(None, [format_columns(table), format_column_differences(table)]))
    print(f"\nScores of GLUE on the validation splits, in percent.\n\n{shown}\n\nAll scores: {file}")


if __name__ == "__main__":
    main()
