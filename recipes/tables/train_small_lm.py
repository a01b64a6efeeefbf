"""Compare small decoders on words: plain, with simple N-gram heads and with word differences (tables 1 and 2).

The whole of table 1 (one GPU; the paper's test perplexities are 161.0 plain, 133.6 to 158.1 for the simple 4-gram and
124.1 to 150.5 for the word difference 4-gram, by ensemble weight):

    HF_TARGETS_DATA=data accelerate launch recipes/tables/train_small_lm.py \
        recipes/settings/tables/train_small_lm/paper.yaml

Its rows of N = 3 with three seeds, at a size for a CPU: `.../cpu.yaml`; in a minute, on documentation:
`.../smoke.yaml`. The rows of table 2, of Tensorized Transformers and Reformers: `.../tensorized_ptb.yaml` and
`.../reformer_ptb.yaml`, and likewise wikitext2, text8 and wikitext103; at a size for a CPU `.../tensorized_cpu.yaml`
and `.../reformer_cpu.yaml`. Measured: recipes/multitoken.md.

Does the gain of heads come where plain overfits? `gap_to_plain.png` beside the runs shows it, step by step.
Figure 2, the gradient diversity of both 4-grams while they train: `.../figure2.yaml`. Table 1 with the decoder of
Vaswani et al. in place of GPT-2's: `.../vaswani.yaml`.

A Reformer's hashes sort whole blocks: its perplexities are not strictly those of one token after the other. A
Tensorized Transformer with `paper_leaky: true` in its `config` reads what it predicts: its table says so.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from itertools import product

import finetune_gptneo_wdr as recipe

from hf_targets import plot_learning_curves
from hf_targets.figures.learning_curves import plot_logged
from lab.runs import Table, compare, histories, run_table
from lab.tables import PERPLEXITIES, differences_table, results_table, weights_table

LEAKY = {f"leaky_{name}": f"leaky {told}" for name, told in PERPLEXITIES.items()}
COMPARED = ("perplexity", "perplexity_ensemble", "leaky_perplexity", "leaky_perplexity_ensemble")


def gaps_to_plain(logs: dict[str, list[list[dict]]]) -> dict[str, list[list[dict]]]:
    """Return logs of how far the validation perplexity of each other row is above plain's, by step and seed."""
    found = {}
    for name, ending in product(logs.keys() - {"plain"}, ("", "_ensemble")):
        gaps = []
        for log, of_plain in zip(logs[name], logs["plain"], strict=True):
            # the first entry of a step counts: after a training its best model is measured, too
            plain = {one["step"]: one["eval_perplexity"] for one in reversed(of_plain) if "eval_perplexity" in one}
            rows = [(entry["step"], entry.get(f"eval_perplexity{ending}")) for entry in log]
            gaps.append([{"step": at, "gap": value - plain[at]} for at, value in rows if value and at in plain])
        found |= {f"{name}{ending.replace('_', ', ')}": gaps} if any(gaps) else {}
    return dict(sorted(found.items()))


def main(table: Table) -> str:
    """Train all rows with all seeds, and return their tables."""
    results = compare(recipe, **vars(table))
    columns = PERPLEXITIES | LEAKY
    curves = table.output_dir / "learning_curves.png"
    logs = histories(table.output_dir, list(table.rows), table.seeds)
    plot_learning_curves(logs, curves)
    if gaps := gaps_to_plain(logs) if "plain" in logs else {}:
        plot_logged(gaps, "gap", "validation perplexity above plain's", table.output_dir / "gap_to_plain.png")
    if any("gradient_diversity" in entry for seeds in logs.values() for log in seeds for entry in log):
        plot_logged(logs, "gradient_diversity", "gradient diversity", table.output_dir / "gradient_diversity.png")
    differences = differences_table(results, {name: columns[name] for name in COMPARED})
    return "\n\n".join([results_table(results, columns), weights_table(results), differences])


if __name__ == "__main__":
    run_table(main, recipe, description=__doc__)
