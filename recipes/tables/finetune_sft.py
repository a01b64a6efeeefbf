"""Compare TRL's supervised fine-tuning with and without heads: test loss, seconds and memory of a step, drafts.

SmolLM2 with LoRA on translations as instructions (two rows, three seeds, five minutes each on a core):
    HF_TARGETS_DATA=data python recipes/tables/finetune_sft.py recipes/settings/tables/finetune_sft/smollm2.yaml

Measured: recipes/fine_tuning.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import finetune_sft as recipe

from lab.runs import Table, compare, run_table
from lab.tables import differences_table, results_table


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    names = {name: name.replace("_", " ") for rows in results.values() for name in rows[0]}
    compared = {"loss": "loss", "step_memory": "step memory"}
    return f"{results_table(results, names)}\n\n{differences_table(results, compared)}"


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
