"""Compare a plain model with models that read and generate phrases, of several kinds, with several seeds.

Offline, in two minutes on two CPU cores; other tables continue texts with these models at their smoke settings:
    python recipes/tables/train_dynamic_vocab.py recipes/settings/tables/train_dynamic_vocab/smoke.yaml
On WikiText-2 at a size for two CPU cores: `.../cpu.yaml`; measured in recipes/phrases.md.
GPT-2 on WikiText-103 as in the paper, against GPT-2 fine-tuned without phrases: `.../paper.yaml`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import train_dynamic_vocab as recipe

from lab.runs import Table, compare, run_table
from lab.tables import differences_table, results_table

COMPARED = {"perplexity": "perplexity", "best_path_perplexity": "with phrases"}


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    columns = {**COMPARED, "seconds": "training, s"}
    return f"{results_table(results, columns)}\n\n{differences_table(results, COMPARED)}"


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
