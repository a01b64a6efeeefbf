"""The splits of a corpus: which files and rows are train, validation and test."""

from collections.abc import Mapping
from typing import TypeVar

SPLITS = ("train", "validation", "test")
SPLIT_WORDS = {"train": ("train",), "validation": ("valid", "dev"), "test": ("test",)}
"""The words in the names of files that are a split."""

_Row = TypeVar("_Row")


def split_rows(sizes: Mapping[str, int], name: str) -> dict[str, tuple[str, range]]:
    """Return for each split the part of a corpus that it is taken from, and which rows of that part.

    A missing validation or test split is the end of train, 5% of its rows each, without overlap.

    Args:
        sizes: Rows in each part that there is, by name; a name is a split or a word for it (valid, dev).
        name: The corpus, for errors.
    Raises:
        ValueError: If there is no train, or it has too few rows.

    >>> split_rows({"train": 40, "dev": 3}, "mine")
    {'train': ('train', range(0, 38)), 'validation': ('dev', range(0, 3)), 'test': ('train', range(38, 40))}
    """
    parts = {split: part for split, words in SPLIT_WORDS.items() for part in (*words, split) if part in sizes}
    if "train" not in parts:
        raise ValueError(f"a corpus needs the split train, and {name!r} has {list(sizes)}; give one that has it")
    missing = [split for split in SPLITS if split not in parts]
    end = sizes[parts["train"]]
    size = max(1, end // 20)
    if missing and end <= size * len(missing):
        raise ValueError(
            f"train must have rows left once {missing} are carved from it, and {name!r} has {end}; "
            f"give a longer text, or a folder with one file for each split"
        )
    carved = {}
    for split in reversed(missing):
        carved[split] = (parts["train"], range(end - size, end))
        end -= size
    whole = {split: (part, range(sizes[part])) for split, part in parts.items()}
    whole["train"] = (parts["train"], range(end))
    return {split: carved[split] if split in carved else whole[split] for split in SPLITS}


def of_dev_and_test(dev: list[_Row], test: list[_Row]) -> dict[str, list[_Row]]:
    """Return the splits of a corpus without a file to train on: train is dev, validation and test halve the test."""
    half = len(test) // 2
    return {"train": dev, "validation": test[:half], "test": test[half:]}
