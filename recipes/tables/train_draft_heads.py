"""Compare kinds of draft heads on one frozen model: how many tokens a pass, and how many times as fast as plain.

On the model that `make run` leaves, offline, on the text that it was trained on:
    python recipes/tables/train_draft_heads.py recipes/settings/tables/train_draft_heads/documentation.yaml

On GPT-Neo 125M, one GPU: `.../paper.yaml`; a quick check that it runs: `.../smoke.yaml`. On stories260K, converted
from the files that llama2.c publishes (by `git show 6e3f87c:recipes/lab/llama2c.py`), 2.5 to 5 minutes for each of four
kinds on one busy core: `.../stories.yaml`. Columns end with the number of texts that are written at once. Measured:
recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import train_draft_heads as recipe

from lab.runs import Table, compare, run_table
from lab.tables import results_table


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their table."""
    results = compare(recipe, **vars(table))
    return results_table(results, {name: name.replace("_", " ") for name in next(iter(results.values()))[0]})


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
