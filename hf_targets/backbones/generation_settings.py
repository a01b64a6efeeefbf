"""Settings of `generate` that a generation configuration has beside those of Transformers."""

from typing import Any

from transformers import GenerationConfig


def generation_setting(name: str, *configs: GenerationConfig | None) -> Any:
    """Return a setting of the first configuration that has it; None if none has.

    Args:
        configs: That of the call before that of the model, as Transformers fills what a given configuration lacks.
    """
    values = (getattr(config, name, None) for config in configs)
    return next((value for value in values if value is not None), None)
