"""The rows of a comparison of Gaussian diffusion models."""

from typing import Any

from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.gaussian_diffusion.process import decoding_steps
from hf_targets.training.model_rows import model_rows


def diffusion_rows(text: str, num_reverse_steps: int | None = None) -> dict[str, dict[str, Any]]:
    """Return the rows that a JSON object describes: to each name the fields of its `DifformerConfig`.

    Args:
        num_reverse_steps: With which each model will decode; None: not checked.
    Raises:
        ValueError: As `model_rows` does, or if a model cannot decode with so many steps.

    >>> diffusion_rows('{"difformer": {}, "curves": {"curve": {"num_control_points_ratio": 2.0}}}')["curves"]
    {'curve': {'num_control_points_ratio': 2.0}}
    """
    rows = model_rows(text, DifformerConfig)
    if num_reverse_steps is not None:
        for fields in rows.values():
            decoding_steps(DifformerConfig(**fields), num_reverse_steps, None)
    return rows
