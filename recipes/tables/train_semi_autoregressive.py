"""Compare models that predict the next N words at once, as words and as sentence curves (section 5.4, figure 6).

On WikiText-2 (one GPU; the paper's average perplexities are 295.33, 366.14 and 420.32 with words and 287.75, 358.37 and
411.89 with curves, for N = 3, 4 and 5):

    HF_TARGETS_DATA=data accelerate launch recipes/tables/train_semi_autoregressive.py \
        recipes/settings/tables/train_semi_autoregressive/paper.yaml

At a size for a CPU: `.../cpu.yaml`; in a minute, on documentation: `.../smoke.yaml`. It also measures how much the
words of a block depend on each other. Measured: recipes/semi_autoregressive.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import asdict
from typing import Any

import train_semi_autoregressive as recipe
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import plot_learning_curves
from lab.dependence import Dependence, block_dependence, plot_dependence
from lab.results import write_json
from lab.runs import Table, compare, histories, run_folder, run_table
from lab.settings import parse_mapping
from lab.tables import differences_table, results_table


def dependence(table: Table) -> dict[str, list[Dependence]]:
    """Return how much the words of a block depend on each other, for all seeds."""
    setup, _ = parse_mapping({**table.settings, "output_dir": str(table.output_dir)}, *recipe.SETTINGS)
    texts = setup.load()
    found: dict[str, list[Dependence]] = {name: [] for name in table.rows}
    for name in table.rows:
        for seed in table.seeds:
            folder = table.output_dir / run_folder(name, seed)
            model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
            test = setup.blocks({"test": texts["test"]}, AutoTokenizer.from_pretrained(folder))["test"]
            found[name] += block_dependence(model, test, seed=seed)
    return found


def main(table: Table) -> str:
    """Train all rows with all seeds, draw figures, and return a table for each N."""
    results, folder = compare(recipe, **vars(table)), table.output_dir
    tables = []
    for ngram_size in dict.fromkeys(row.get("ngram_size", 3) for row in table.rows.values()):
        alike = {name: results[name] for name, row in table.rows.items() if row.get("ngram_size", 3) == ngram_size}
        tables += [results_table(alike), differences_table(alike, {"perplexity": "perplexity"})]
    plot_learning_curves(histories(folder, list(table.rows), table.seeds), folder / "learning_curves.png")
    found = dependence(table)
    plot_dependence(found, folder / "dependence.png")
    write_json(folder / "dependence.json", {name: list(map(asdict, one)) for name, one in found.items()})
    return "\n\n".join(filter(None, tables))


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
