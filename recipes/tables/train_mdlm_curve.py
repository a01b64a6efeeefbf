"""Compare plain masked diffusion with models that predict sentence curves, with several seeds.

On the documentation that ships with Python, offline, in a minute (a quick check that it runs):
    python recipes/tables/train_mdlm_curve.py recipes/settings/tables/train_mdlm_curve/smoke.yaml
As the paper on LM1B (its figure 5): `.../paper.yaml`; at a size for two CPU cores: `.../cpu.yaml`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import train_mdlm_curve as recipe

from hf_targets import plot_learning_curves
from lab.runs import Table, compare, histories, run_table
from lab.tables import differences_table, results_table

COLUMNS = {
    "parameters": "parameters",
    "perplexity": "bound",
    "nelbo": "nats a token",
    "nelbo_margin": "95% margin, nats",
    "word_perplexity": "bound a word",
    "seconds": "training, s",
}


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    curves = table.output_dir / "learning_curves.png"
    plot_learning_curves(histories(table.output_dir, list(table.rows), table.seeds), curves)
    compared = {name: COLUMNS[name] for name in ("perplexity", "nelbo")}
    return f"{results_table(results, COLUMNS)}\n\n{differences_table(results, compared)}\n\nLearning curves: {curves}"


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
