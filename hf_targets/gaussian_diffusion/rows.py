"""The rows of a comparison of Gaussian diffusion models."""

from typing import Any

from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.gaussian_diffusion.process import decoding_steps
from hf_targets.training.model_rows import model_rows

_OF_TOKENIZER = {"vocab_size", "source_vocab_size", "pad_token_id", "eos_token_id", "bos_token_id"}


def diffusion_rows(text: str, num_reverse_steps: int | None = None, **common: Any) -> dict[str, dict[str, Any]]:
    """Return the rows that a JSON object describes: to each name the fields of its `DifformerConfig`.

    Args:
        num_reverse_steps: With which each model will decode; None: not checked.
        common: Fields of all rows; what a row says itself comes first.
    Raises:
        ValueError: As `model_rows` does, a row has a field that follows from the tokenizer, or a model cannot decode
            with so many steps.

    >>> diffusion_rows('{"difformer": {}, "curves": {"curve": {"degree": 2}, "dropout": 0.0}}', dropout=0.1)
    {'difformer': {'dropout': 0.1}, 'curves': {'dropout': 0.0, 'curve': {'degree': 2}}}
    """
    rows = model_rows(text, DifformerConfig, **common)
    for name, fields in rows.items():
        if of_tokenizer := sorted(fields.keys() & _OF_TOKENIZER):
            raise ValueError(f"row {name}: {', '.join(of_tokenizer)} follows from the tokenizer; leave it out")
        if num_reverse_steps is not None:
            decoding_steps(DifformerConfig(**fields), num_reverse_steps, None)
    return rows
