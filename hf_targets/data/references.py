"""Several correct targets of one source: each makes a pair to train on; texts are compared with all of them."""

from collections.abc import Sequence
from typing import Any, cast

from datasets import Dataset, Features, List, Value

Pairs = Sequence[tuple[str, str | list[str]]]
"""Source and target of each pair, or all targets of a source."""

PAIR_FEATURES = Features({"source": Value("string"), "target": Value("string")})
REFERENCES = "references"
"""The column of all targets of a source, of which `target` is the first."""


def is_target(value: Any) -> bool:
    """Return whether this is a text, or a list of one or more."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str) for one in value)
    return isinstance(value, str)


def data_set_of(pairs: Pairs) -> Dataset:
    """Return pairs as `source` and `target`, and with the column `references` if a source has a list of targets."""
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    if all(isinstance(target, str) for target in targets):
        return Dataset.from_dict({"source": sources, "target": targets}, features=PAIR_FEATURES)
    lists = [[target] if isinstance(target, str) else target for target in targets]
    columns = {"source": sources, "target": [first for first, *_ in lists], REFERENCES: lists}
    return Dataset.from_dict(columns, features=Features({**PAIR_FEATURES, REFERENCES: List(Value("string"))}))


def pairs_to_train_on(pairs: Dataset) -> Dataset:
    """Return a pair for each target of each source, in their order, with the columns `source` and `target`."""
    if REFERENCES not in pairs.column_names:
        return pairs
    return data_set_of([(row["source"], target) for row in cast(list[dict], pairs) for target in row[REFERENCES]])


def pair_references(pairs: Dataset) -> list[str] | list[list[str]]:
    """Return what a text for each source is compared with: its target, or the list of all its targets.

    Args:
        pairs: A split of `load_pairs`.

    >>> pair_references(data_set_of([("It commenced.", ["It began.", "It started."])]))
    [['It began.', 'It started.']]
    """
    return pairs[REFERENCES if REFERENCES in pairs.column_names else "target"][:]
