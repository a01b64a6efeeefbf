"""The rows of a comparison of Gaussian diffusion models: fields of their configurations, by name."""

from typing import Any

from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.training.settings import parse_mapping


def diffusion_rows(text: str) -> dict[str, dict[str, Any]]:
    """Return the rows that a JSON object describes: to each name the fields of its `DifformerConfig`.

    Raises:
        ValueError: If it is no such object, it is empty, or a configuration cannot be made of a row.

    >>> diffusion_rows('{"difformer": {}, "curves": {"curve": {"num_control_points_ratio": 2.0}}}')["curves"]
    {'curve': {'num_control_points_ratio': 2.0}}
    """
    rows = {}
    for name, fields in parse_mapping(text, "rows").items():
        if not isinstance(fields, dict):
            raise ValueError(f"row {name} must be an object, such as {{}} for the defaults, got {fields!r}")
        unknown = fields.keys() - DifformerConfig.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"row {name} has no such field: {', '.join(sorted(unknown))}")
        try:
            DifformerConfig(**fields)
        except ValueError as error:
            raise ValueError(f"row {name}: {error}") from error
        rows[name] = fields
    if not rows:
        raise ValueError('rows must name a model, such as {"difformer": {}}, got none')
    return rows
