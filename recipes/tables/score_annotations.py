"""Print what annotators preferred, overall and in four aspects: table 2.

`evaluate_generation.py ... --pairs_for_annotators FOLDER` writes a page of blind pairs. Annotators judge on it, and put
the CSV files that it saves into the folder:
    python recipes/tables/score_annotations.py --folder FOLDER
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field

from lab.pairwise import format_preferences, shares
from lab.settings import parse_settings


@dataclass
class Setup:
    """Whose answers are counted."""

    folder: str = field(default="", metadata={"help": "With the key of the pairs, and the answers."})


def main(setup: Setup) -> None:
    """Print a table for each model that was compared."""
    for name, by_question in shares(setup.folder).items():
        print(f"{name}:\n\n{format_preferences(by_question)}\n")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
