"""The rows of a comparison of models that predict blocks of N words."""

from typing import Any

from hf_targets.semi_autoregressive.configuration import BASE_FIELDS, SemiAutoregressiveConfig
from hf_targets.training.model_rows import model_rows


def block_rows(text: str) -> dict[str, dict[str, Any]]:
    """Return the rows that a JSON object describes: to each name its `ngram_size` and `curve`.

    Raises:
        ValueError: As `model_rows` does, or if a row has another field.

    >>> block_rows('{"words": {"ngram_size": 4}}')
    {'words': {'ngram_size': 4}}
    """
    rows = model_rows(text, SemiAutoregressiveConfig)
    for name, fields in rows.items():
        if others := fields.keys() - set(BASE_FIELDS):
            raise ValueError(f"row {name} may have {' and '.join(BASE_FIELDS)}, got {', '.join(sorted(others))}")
    return rows
