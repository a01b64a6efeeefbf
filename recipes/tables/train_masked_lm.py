"""Compare masked models: plain, with word differences, and with differences of masked words alone (table 7).

At a size for a CPU with a CrammedBERT (`.../cpu.yaml`: with a BERT; `.../paper.yaml`: on one GPU; `.../smoke.yaml`: in
a minute, on documentation):
    HF_TARGETS_DATA=data python recipes/tables/train_masked_lm.py \
        recipes/settings/tables/train_masked_lm/crammed_cpu.yaml

Measured: recipes/masked_models.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import train_masked_lm as recipe

from hf_targets import plot_learning_curves
from lab.runs import Table, compare, histories, run_table
from lab.tables import differences_table, results_table


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    curves = table.output_dir / "learning_curves.png"
    plot_learning_curves(histories(table.output_dir, list(table.rows), table.seeds), curves)
    differences = differences_table(results, {"perplexity": "perplexity"})
    return "\n\n".join(filter(None, [results_table(results), differences]))


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
