"""What the two mappings of a sentence curve do, without a model: what they lose, and which errors they weigh most.

Figure 8 and lemma 4.3 of the sentence curve paper, over the lengths, N_ratio and Eta_ratio of its searches (seconds):

    python recipes/tables/analyze_curves.py recipes/settings/tables/analyze_curves/paper.yaml

It leaves tables, `reconstruction.png` and `error_importance.png`. Measured: recipes/gaussian_diffusion.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hf_targets.curves.reconstruction import reconstruction_error
from lab.curve_analysis import error_importance, plot_error_importance, plot_reconstruction_error
from lab.results import write_json
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """The curves that are looked at."""

    output_dir: str = field(default="runs/analyze_curves", metadata={"help": "Folder for tables and figures."})
    lengths: list[int] = field(default_factory=lambda: [8, 16, 32, 64, 128], metadata={"help": "Tokens, L."})
    ratios: list[float] = field(default_factory=lambda: [2.0, 2.5, 3.0], metadata={"help": "Values of N_ratio."})
    degree_ratios: list[float] = field(
        default_factory=lambda: [0.01, 0.05, 0.1, 0.2], metadata={"help": "Values of Eta_ratio; 0 gives degree 2."}
    )
    lossy_lengths: list[int] = field(
        default_factory=lambda: list(range(25, 251, 25)),
        metadata={"help": "Tokens of the texts whose loss is measured."},
    )
    lossy_ratios: list[float] = field(
        default_factory=lambda: [1.0, 1.5, 2.0, 2.5, 3.0], metadata={"help": "N_ratio of the curves for these."}
    )
    lossy_degree_ratios: list[float] = field(
        default_factory=lambda: [0.0, 0.33, 0.66], metadata={"help": "Eta_ratio of the curves for these."}
    )


def main(setup: Setup) -> None:
    """Print both tables, and leave them with their figures."""
    weights = error_importance(setup.lengths, setup.ratios, setup.degree_ratios)
    lost = reconstruction_error(setup.lossy_lengths, setup.lossy_ratios, setup.lossy_degree_ratios)
    folder = Path(setup.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    plot_reconstruction_error(lost, folder / "reconstruction.png")
    plot_error_importance(weights, folder / "error_importance.png")
    for name, rows in (("reconstruction", lost), ("error_importance", weights)):
        write_json(folder / f"{name}.json", [asdict(row) for row in rows])
    print(_table(lost, ("mse", "rank", "inverse_norm"), ("lost of unit noise", "rank", "norm of the inverse")))
    columns = ("least_ratio", "mean_ratio", "largest_ratio", "eigenvalue_ratio")
    print(f"\n{_table(weights, columns, ('R, least', 'mean', 'largest', 'its bound'))}\n\nFigures: {folder}")


def _table(rows: Sequence[Any], columns: Sequence[str], heads: Sequence[str]) -> str:
    """Return rows as a table of their settings and these columns."""
    settings = ("num_control_points_ratio", "degree_ratio", "length", "num_control_points", "degree")
    cells = [[f"{getattr(row, name):.3g}" for name in (*settings, *columns)] for row in rows]
    return markdown_table(("N / L", "degree / N", "L", "N", "degree", *heads), cells, num_names=0)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
