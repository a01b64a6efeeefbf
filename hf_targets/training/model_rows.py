"""The rows of a comparison of models: fields of their configurations, by name."""

from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from hf_targets.training.settings import parse_mapping


def model_rows(text: str, config_class: type[PreTrainedConfig], **common: Any) -> dict[str, dict[str, Any]]:
    """Return the rows that a JSON object describes: to each name the fields of its configuration.

    Args:
        common: Fields of all rows; what a row says itself comes first.
    Raises:
        ValueError: If it is no such object, it is empty, or a configuration cannot be made of a row.
    """
    rows = {}
    for name, fields in parse_mapping(text, "rows").items():
        if not isinstance(fields, dict):
            raise ValueError(f"row {name} must be an object, such as {{}} for the defaults, got {fields!r}")
        unknown = fields.keys() - config_class.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"row {name} has no such field: {', '.join(sorted(unknown))}")
        try:
            config_class(**{**common, **fields})
        except ValueError as error:
            raise ValueError(f"row {name}: {error}") from error
        rows[name] = {**common, **fields}
    if not rows:
        raise ValueError('rows must name a model, such as {"plain": {}}, got none')
    return rows
