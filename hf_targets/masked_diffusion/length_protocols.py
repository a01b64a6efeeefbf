"""The columns of a row that say how its padding counts, and the checks that they agree."""

from collections.abc import Mapping, Set
from itertools import compress
from typing import Any, Literal

import torch
from datasets import Dataset

from hf_targets.data.token_rows import has_value
from hf_targets.maths.losses import IGNORED

LengthProtocol = Literal["predicted", "published", "conditional"]
"""How the padding of a row counts; `masked_diffusion.rows.sentence_rows` tells them apart."""

NUM_TOKENS, MAY_MASK = "num_tokens", "may_mask"
"""Columns: the tokens of text in a row with padding that is predicted, and where a row may be masked."""

_NAMES = {
    (): f"neither {NUM_TOKENS} nor {MAY_MASK}",
    (NUM_TOKENS,): f"{NUM_TOKENS} without {MAY_MASK}",
    (MAY_MASK,): f"{MAY_MASK} without {NUM_TOKENS}",
    (NUM_TOKENS, MAY_MASK): f"both {NUM_TOKENS} and {MAY_MASK}",
}

Columns = tuple[str, ...]
"""Those of `NUM_TOKENS` and `MAY_MASK` that a row has, which differ by `length_protocol`."""


def protocol_columns(row: Mapping[str, Any]) -> Columns:
    """Return which of the columns a row has. None counts as missing: joined data sets fill gaps with it."""
    return tuple(name for name in (NUM_TOKENS, MAY_MASK) if row.get(name) is not None)


def protocol_columns_of(dataset: Dataset) -> set[Columns]:
    """Return which columns the rows of a data set have: one element if they are all alike."""
    names = (NUM_TOKENS, MAY_MASK)
    flags = zip(*(has_value(dataset, name) for name in names), strict=True)
    return {tuple(compress(names, row)) for row in set(flags)}


def check_one_protocol(found: Set[Columns], where: str = "") -> None:
    """Check that rows with these columns are of one `length_protocol`.

    Args:
        found: As `protocol_columns` gives them.
        where: What the error begins with.
    Raises:
        ValueError: If some rows have other columns than others.
    """
    if len(found) > 1:
        some, *others = sorted(_NAMES[columns] for columns in found)
        raise ValueError(
            f"{where}rows must be of one length_protocol, and some have {some} and others {' or '.join(others)}; make "
            "them all with the same length_protocol of hf_targets.masked_diffusion.rows.sentence_rows, or use each "
            "kind alone"
        )


def check_num_tokens(row: Mapping[str, Any], index: int) -> None:
    """Check that a row has a label for each of its `num_tokens` of text.

    Args:
        row: With `input_ids`, and maybe `labels` (the ids, if left out), `attention_mask` and `num_tokens`.
        index: Of the row among all, for the error.
    Raises:
        ValueError: If it has not, as when the row was cut after it was counted.
    """
    if row.get(NUM_TOKENS) is None:
        return
    counted = torch.as_tensor(row.get("labels", row["input_ids"])) != IGNORED
    if "attention_mask" in row:
        counted &= torch.as_tensor(row["attention_mask"]).bool()
    num_labels = int(counted.sum())
    if not 0 <= row[NUM_TOKENS] <= num_labels:
        raise ValueError(
            f"{NUM_TOKENS} must be in [0, {num_labels}], the labels of row {index} that are no -100 or hidden, got "
            f"{row[NUM_TOKENS]}; a row that is cut must be counted anew, or made by sentence_rows with a lower "
            "max_length"
        )
