"""The two published models, as values of the same fields: all fields that differ between them are in this table."""

from typing import Any, Literal

Preset = Literal["difformer", "dinoiser"]

PRESETS: dict[str, dict[str, Any]] = {
    # zhjgao/difformer, difformer_iwslt_de_en and its scripts
    "difformer": {
        "latent_size": 128,
        "noise_schedule": "sqrt",
        "noise_factor": 4.0,
        "clip_noise": False,
        "self_conditioning": "half",
        "normalize_embeddings": False,
        "word_loss": "anchor",
        "label_smoothing": 0.1,
        "dropout": 0.3,
        "projection": "linear",
        "time_embedding": "sinusoidal",
        "activation_function": "relu",
    },
    # yegcjs/DINOISER, IWSLT14
    "dinoiser": {
        "latent_size": 16,
        "noise_schedule": "continuous",
        "noise_factor": 1.0,
        "clip_noise": True,
        "self_conditioning": "both",
        "normalize_embeddings": True,
        "word_loss": "rounding",
        "label_smoothing": 0.0,
        "dropout": 0.2,
        "projection": "tanh",
        "time_embedding": "fourier",
        "activation_function": "gelu",
    },
}
"""A field of `DifformerConfig` that is None takes the value of its preset."""


def departures(preset: str, fields: Any) -> list[str]:
    """Return the names of the fields of a configuration that do not have the values of its preset."""
    return [name for name, value in PRESETS[preset].items() if getattr(fields, name) != value]


def check_preset(preset: str, fields: Any) -> None:
    """Check that the fields are not all those of another preset, as when a configuration is given a new name for it.

    Raises:
        ValueError: If they are: fields that have a value keep it.
    """
    for other in PRESETS.keys() - {preset}:
        if not departures(other, fields):
            raise ValueError(
                f"preset={preset!r} fills the fields that are None, and all have the values of {other!r}; make a new "
                f"configuration with preset={preset!r}, or set the fields"
            )
