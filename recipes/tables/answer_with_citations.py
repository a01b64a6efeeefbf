"""Answer the same questions in several ways, and print the paper's table 7.

    python recipes/tables/answer_with_citations.py recipes/settings/tables/answer_with_citations/cpu.yaml \
        --questions FILE

Rows: a plain model, then the model with phrases that have markers (n-grams, constituents), without phrases (none), and
with phrases that get their markers afterwards (provenance). Each row with each seed is a folder in `output_dir`, with
the answers and a page; what is there already is not answered again. As in the paper: `.../paper.yaml`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import answer_with_citations as recipe

from lab.results import read_results, shareable, write_json, write_results
from lab.runs import SETTINGS_NAME, check_record, run_folder
from lab.settings import parse_mapping, stated_settings
from lab.tables import differences_table, results_table


@dataclass
class Rows:
    """What is compared."""

    rows: dict[str, Any] = field(default_factory=dict, metadata={"help": "To each row's name its own settings."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Each row answers with each."})


def main(settings: dict[str, Any]) -> str:
    """Answer in all rows with all seeds, and return their tables."""
    (table,) = parse_mapping({name: settings.pop(name) for name in vars(Rows()) if name in settings}, Rows)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in table.rows}
    for seed, (name, row) in product(table.seeds, table.rows.items()):
        folder = Path(settings["output_dir"], run_folder(name, seed))
        (setup,) = parse_mapping({**settings, **(row or {}), "seed": seed, "output_dir": str(folder)}, recipe.Setup)
        check_record(folder, record := shareable(asdict(setup)))
        results = read_results(folder)
        if results is None:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / SETTINGS_NAME, record)
            write_results(folder, results := recipe.main(setup))
            print(f"{folder.name}: {results['seconds']:.2f} s an answer", flush=True)
        found[name].append(results)
    return f"{results_table(found)}\n\n{differences_table(found)}\n\nAnswers: {settings['output_dir']}"


if __name__ == "__main__":
    print(f"\n{main(stated_settings(Rows, recipe.Setup, description=__doc__))}")
