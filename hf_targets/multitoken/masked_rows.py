"""The rows of a comparison of masked models: plain, or with heads of some kind."""

import json
from typing import Any

from hf_targets.multitoken.configuration import MASKED_FIELDS, MultiTokenMaskedConfig
from hf_targets.training.model_rows import model_rows
from hf_targets.training.settings import parse_mapping


def masked_model_rows(text: str) -> dict[str, dict[str, Any] | None]:
    """Return the rows that a JSON object describes: to each name null for a plain model, or the fields of its heads.

    Raises:
        ValueError: As `model_rows` does, or if a row has another field.

    >>> masked_model_rows('{"plain": null, "wdr": {"ngram_size": 2, "masked_only": true}}')
    {'plain': None, 'wdr': {'ngram_size': 2, 'masked_only': True}}
    """
    given = parse_mapping(text, "rows")
    heads = {name: fields for name, fields in given.items() if fields is not None}
    if heads or not given:
        model_rows(json.dumps(heads), MultiTokenMaskedConfig)
    for name, fields in heads.items():
        if others := fields.keys() - set(MASKED_FIELDS):
            raise ValueError(f"row {name} may have {', '.join(MASKED_FIELDS)}, got {', '.join(sorted(others))}")
    return given
