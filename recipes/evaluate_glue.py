"""Fine-tune a pre-trained model on tasks of GLUE, and print its scores on the validation splits.

In a minute, on the first examples of a task, with a model that train_masked_lm.py left:
    HF_TARGETS_DATA=data python recipes/evaluate_glue.py recipes/settings/evaluate_glue/smoke.yaml
Any model that AutoModelForSequenceClassification loads: --model_name_or_path bert-base-uncased --tasks rte sst2
Models side by side, with several seeds: recipes/tables/evaluate_glue.py. Notes: recipes/masked_models.md.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from transformers import TrainingArguments

from lab.glue import GLUE_TASKS, fine_tune
from lab.results import write_results
from lab.runs import run_alone


@dataclass
class Setup:
    """Which model is fine-tuned, and on what."""

    model_name_or_path: str = field(
        metadata={"help": "A name on the Hub or a folder, in which {seed} stands for the seed of the fine-tuning."}
    )
    tasks: list[str] = field(
        default_factory=lambda: ["cola", "mrpc", "rte", "sst2"], metadata={"help": f"Of {', '.join(GLUE_TASKS)}."}
    )
    max_length: int = field(
        default=128, metadata={"help": "Tokens of an example, special ones included; the longer of its texts is cut."}
    )
    single_as_pair: bool = field(
        default=False, metadata={"help": "Read one text alone as a pair with an empty second one: [SEP] [SEP]."}
    )
    max_train_examples: int | None = field(
        default=None, metadata={"help": "Keep the first so many examples of each training split; None keeps all."}
    )
    model_fields: dict[str, Any] = field(
        default_factory=dict, metadata={"help": 'Fields of the configuration to change: {"classifier_pooling": "cls"}.'}
    )

    def __post_init__(self) -> None:
        if unknown := set(self.tasks) - GLUE_TASKS.keys():
            raise ValueError(f"tasks must be some of {', '.join(GLUE_TASKS)}, got {', '.join(unknown)}")


SETTINGS = (Setup, TrainingArguments)


def main(setup: Setup, args: TrainingArguments) -> dict[str, float]:
    """Fine-tune the model on each task, and return the scores and the average of these columns; MNLI has two."""
    name, results = setup.model_name_or_path.replace("{seed}", str(args.seed)), {}
    for task in setup.tasks:
        found = fine_tune(
            name,
            task,
            args,
            max_length=setup.max_length,
            single_as_pair=setup.single_as_pair,
            max_train_examples=setup.max_train_examples,
            model_fields=setup.model_fields,
        )
        results[task] = found["score"]
        if "mismatched_score" in found:
            results[f"{task}-mismatched"] = found["mismatched_score"]
    results["average"] = fmean(results.values())
    if not args.process_index:
        write_results(str(args.output_dir), results)
        print(f"Scores of {name}, in percent: {results}")
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
