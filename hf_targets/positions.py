"""How long a text a model can read."""

from typing import Any


def max_positions(config: Any) -> int | None:
    """Return how many positions a model of this configuration has; None where nothing limits them."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)
