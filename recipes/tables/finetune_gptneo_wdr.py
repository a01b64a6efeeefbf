"""Compare a plain model, simple N-gram heads and word difference heads, with several seeds (table 9).

Offline, in about four minutes on two CPU cores:
    accelerate launch recipes/tables/finetune_gptneo_wdr.py recipes/settings/tables/finetune_gptneo_wdr/smoke.yaml
With GPT-Neo 1.3B, as in the paper (one 24 GB GPU, about a day a row and seed; expected 13.25 plain, 13.13 and 12.93
with the ensemble for the simple N-gram, 13.00 and 12.91 for word differences): `.../paper.yaml`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import finetune_gptneo_wdr as recipe

from hf_targets import plot_learning_curves
from lab.runs import Table, compare, histories, run_table
from lab.tables import PERPLEXITIES, differences_table, intervals_table, results_table

COMPARED = {name: PERPLEXITIES[name] for name in ("perplexity", "perplexity_ensemble")}


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    curves = table.output_dir / "learning_curves.png"
    plot_learning_curves(histories(table.output_dir, list(table.rows), table.seeds), curves)
    parts = [results_table(results, PERPLEXITIES), differences_table(results, COMPARED)]
    parts += [intervals_table(results, COMPARED), f"Learning curves: {curves}"]
    return "\n\n".join(filter(None, parts))


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
