"""Settings of `generate` that a generation configuration has beside those of Transformers."""

from typing import Any

from transformers import GenerationConfig


def generation_setting(name: str, given: GenerationConfig | None, own: GenerationConfig | None) -> Any:
    """Return a setting of the configuration that was given, or else of the model's own; None if neither has it.

    Transformers fills what a given configuration lacks in the same way. The configuration given to an assistant is that
    of the model which it assists, and is passed over.
    """
    configs = (own,) if is_assistant(given) else (given, own)
    values = (getattr(config, name, None) for config in configs)
    return next((value for value in values if value is not None), None)


def is_assistant(given: GenerationConfig | None) -> bool:
    """Return whether a model is asked for drafts that another model verifies."""
    return bool(getattr(given, "is_assistant", False))
