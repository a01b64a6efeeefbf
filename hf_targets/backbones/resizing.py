"""A check before a vocabulary is resized."""

from typing import Any


def check_kept_ids(config: Any, new_num_tokens: int | None, *names: str) -> None:
    """Check that a resized vocabulary keeps the ids that a configuration names.

    Args:
        new_num_tokens: None: it stays as it is.
        names: Fields of the configuration, whose ids may be None.
    Raises:
        ValueError: If it does not.
    """
    for name in names:
        number = getattr(config, name)
        if new_num_tokens is not None and number is not None and number >= max(new_num_tokens, 1):
            raise ValueError(f"the vocabulary must keep {name}={number}, got {new_num_tokens} tokens")
