"""Compare AWD-LSTMs with and without cosine regularisation, before and after finetuning, with the continuous cache.

Table 1 of the paper on WikiText-2 (one GPU; its test perplexities are 66.0 and 65.2 with gamma = 1, then 65.8 and 64.1
finetuned, then 52.0 and 50.0 with the cache), and the published AWD-LSTM on Penn Treebank (58.8, 56.5 and 52.5):
    HF_TARGETS_DATA=data accelerate launch recipes/tables/train_awd_lstm.py \
        recipes/settings/tables/train_awd_lstm/wikitext2.yaml  # or ptb.yaml
At a size for a CPU: `.../ptb_cpu.yaml` and `.../wikitext2_cpu.yaml`; in minutes, on documentation: `.../smoke.yaml`.
A row with `finetunes` goes on from the models of that row, and stands below it. Measured: recipes/cosine.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import train_awd_lstm as recipe

from hf_targets import plot_learning_curves
from lab.runs import Table, compare, histories, run_folder, run_table
from lab.tables import differences_table, results_table

COLUMNS = {
    "word_perplexity": "word perplexity",
    "word_perplexity_cache": "with cache",
    "mean cosine, %": "mean cosine, %",
    "effective rank": "effective rank",
}


def main(table: Table) -> str:
    """Train all rows with all seeds; return their table, and differences between models of as much training."""
    results: dict[str, list] = {name: [] for name in table.rows}
    for seed in table.seeds:
        for name, row in table.rows.items():
            own = {key: value for key, value in row.items() if key != "finetunes"}
            if "finetunes" in row:
                before = table.output_dir / run_folder(row["finetunes"], seed)
                own |= {"model_name_or_path": str(before), "average_from_start": True}
            given = table.settings, {name: own}, [seed], table.output_dir
            results[name] += compare(recipe, *given, overwrite=table.overwrite)[name]
    curves = table.output_dir / "learning_curves.png"
    plot_learning_curves(histories(table.output_dir, list(table.rows), table.seeds), curves)
    parts = [results_table(results, COLUMNS)]
    for finetuned in (False, True):
        alike = {name: results[name] for name, row in table.rows.items() if ("finetunes" in row) is finetuned}
        parts += [differences_table(alike, COLUMNS)] if len(alike) > 1 else []
    return "\n\n".join([*parts, f"Learning curves: {curves}"])


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
