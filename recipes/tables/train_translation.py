"""Compare translation models: plain, bags of words, the simple N-gram and word differences (table 4).

On Multi30k, at a size for two CPU cores (settings for IWSLT14, WMT14 and WMT18 are beside it; `wmt14_cosine.yaml` has
the rows of table 2 of the paper on cosine regularisation):

    HF_TARGETS_DATA=data accelerate launch recipes/tables/train_translation.py \
        recipes/settings/tables/train_translation/multi30k.yaml

In a minute, without data: `.../smoke.yaml`. Measured: recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import train_translation as recipe

from lab.runs import Table, compare, run_table
from lab.tables import PERPLEXITIES, differences_table, results_table

SCORES = ("bleu", "bleu_ensemble", "bleu_tokenized", "bleu_tokenized_ensemble", "chrf", "chrf_ensemble")


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    columns = {name: name.replace("_", " ") for name in SCORES}
    scores = results_table(results, columns), differences_table(results, columns)
    return "\n\n".join([*filter(None, scores), results_table(results, PERPLEXITIES)])


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
