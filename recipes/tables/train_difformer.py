"""Compare Gaussian diffusion models: Difformer, with word differences, with sentence curves, and DINOISER.

Tables 1 to 3 and 6 of the sentence curve paper, and table 10 of the word difference paper. In a minute, without data:
    python recipes/tables/train_difformer.py recipes/settings/tables/train_difformer/smoke.yaml
On Multi30k at a size for two CPU cores: `.../multi30k.yaml`; expected figures: recipes/gaussian_diffusion.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import train_difformer as recipe

from lab.runs import Table, compare, parse_table
from lab.tables import differences_table, results_table

_SCORES = {"bleu": "BLEU", "bleu_tokenized": "BLEU of words", "chrf": "chrF"}
COMPARED = _SCORES | {f"{name}_ensemble": f"{told}, ensemble" for name, told in _SCORES.items()}
COLUMNS = {"parameters": "parameters", **COMPARED, "seconds": "training, s"}


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    return f"{results_table(results, COLUMNS)}\n\n{differences_table(results, COMPARED)}"


if __name__ == "__main__":
    print(f"\n{main(parse_table(recipe, description=__doc__))}")
