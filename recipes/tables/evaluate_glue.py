"""Fine-tune several pre-trained models on tasks of GLUE, with several seeds, and print their scores side by side.

The models that train_masked_lm left, on the four tasks that are read from files:
    HF_TARGETS_DATA=data python recipes/tables/evaluate_glue.py recipes/settings/tables/evaluate_glue/crammed_cpu.yaml
On all tasks that the earlier paper on word differences reports: `.../paper.yaml`. In a minute: `.../smoke.yaml`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import evaluate_glue as recipe

from lab.runs import Table, compare, run_table
from lab.tables import differences_table, results_table


def main(table: Table) -> str:
    """Fine-tune all rows with all seeds, and return the table of their scores, in percent."""
    results = compare(recipe, **vars(table))
    tables = f"{results_table(results)}\n\n{differences_table(results)}"
    return f"Scores of GLUE on the validation splits, in percent.\n\n{tables}"


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
