"""The rows of a comparison of Gaussian diffusion models."""

from typing import Any

from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.training.model_rows import model_rows


def diffusion_rows(text: str) -> dict[str, dict[str, Any]]:
    """Return the rows that a JSON object describes: to each name the fields of its `DifformerConfig`.

    Raises:
        ValueError: As `model_rows` does.

    >>> diffusion_rows('{"difformer": {}, "curves": {"curve": {"num_control_points_ratio": 2.0}}}')["curves"]
    {'curve': {'num_control_points_ratio': 2.0}}
    """
    return model_rows(text, DifformerConfig)
