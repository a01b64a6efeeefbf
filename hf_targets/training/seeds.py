"""Several seeds: a model is trained once with each, since one seed decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class SeedSettings:
    """The seeds of a recipe that makes a table; they stand in place of the `seed` of Transformers' arguments.

    Raises:
        ValueError: If there is no seed, or one is given twice or out of [0, 2^32 - 1].
    """

    settings_title: ClassVar[str] = "Experiment"

    seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Every model is trained once with each; tables show means with standard errors."},
    )

    def __post_init__(self) -> None:
        check_seeds(self.seeds)


def check_seeds(seeds: Sequence[int]) -> None:
    """Make sure that each seed gives a run of its own.

    Raises:
        ValueError: If there is no seed, or one is given twice or out of [0, 2^32 - 1].
    """
    if not seeds:
        raise ValueError("seeds must name at least one seed, got none; give, for example, --seeds 0 1 2")
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise ValueError(
            f"seeds must differ, as the same seed gives the same run again, got {', '.join(map(str, twice))} twice"
        )
    if wrong := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise ValueError(f"seeds must be in [0, 2^32 - 1], which all generators take, got {wrong[0]}")


def run_folder(name: str, seed: int | str) -> str:
    """Return the name of the folder of a run; with "*" as the seed, the pattern for all seeds.

    >>> run_folder("plain", 3)
    'plain-seed3'
    """
    return f"{name}-seed{seed}"
