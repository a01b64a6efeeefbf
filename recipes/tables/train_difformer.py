"""Compare Gaussian diffusion models: Difformer, with word differences, with sentence curves, and DINOISER.

Tables 1 to 3 and 6 of the sentence curve paper and its figure 4 (validation BLEU of one text a source over the steps),
and table 5 of the word difference paper. In a minute, without data:
    python recipes/tables/train_difformer.py recipes/settings/tables/train_difformer/smoke.yaml
On Multi30k at a size for two CPU cores: `.../multi30k.yaml`; expected figures: recipes/gaussian_diffusion.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import train_difformer as recipe

from hf_targets.figures.learning_curves import plot_logged
from lab.runs import Table, compare, histories, run_table
from lab.tables import differences_table, results_table

_SCORES = {"bleu": "BLEU", "bleu_tokenized": "BLEU of words", "chrf": "chrF"}
COMPARED = _SCORES | {f"{name}_ensemble": f"{told}, ensemble" for name, told in _SCORES.items()}
COLUMNS = {"parameters": "parameters", "validation_bleu": "Valid BLEU", **COMPARED, "seconds": "training, s"}


def main(table: Table) -> str:
    """Train all rows with all seeds, draw their validation curves, and return their tables."""
    results = compare(recipe, **vars(table))
    curves = table.output_dir / "validation_bleu.png"
    plot_logged(histories(table.output_dir, list(table.rows), table.seeds), "eval_bleu", "validation BLEU", curves)
    tables = f"{results_table(results, COLUMNS)}\n\n{differences_table(results, COMPARED)}"
    return f"{tables}\n\nValidation curves: {curves}"


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
