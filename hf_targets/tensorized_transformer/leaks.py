"""Leaky models in experiments: they take part only where the user names them, and under a name that says so."""

from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedModel

from hf_targets.tensorized_transformer.configuration import TensorizedTransformerConfig

LEAKY_SUFFIX = "-leaky"


def is_leaky(model: PreTrainedModel | Any) -> bool:
    """Return whether a model, or the model that it wraps, reads the tokens that it predicts.

    Args:
        model: A model or its configuration.
    """
    config = model.config if isinstance(model, PreTrainedModel) else model
    while config is not None:
        if isinstance(config, TensorizedTransformerConfig):
            return config.paper_leaky
        config = getattr(config, "backbone", None)
    return False


def leaky_name(name: str, model: PreTrainedModel | Any) -> str:
    """Return the name of a model for tables and folders: with the ending "-leaky" if it is.

    >>> leaky_name("tensorized", TensorizedTransformerConfig(paper_leaky=True))
    'tensorized-leaky'
    >>> leaky_name("tensorized", TensorizedTransformerConfig())
    'tensorized'
    """
    return name + LEAKY_SUFFIX if is_leaky(model) and not name.endswith(LEAKY_SUFFIX) else name


def check_leaky_allowed(models: Iterable[PreTrainedModel | Any], *, paper_leaky: bool) -> None:
    """Check that no model reads the tokens that it predicts, unless the user has asked for such models.

    Args:
        models: Models or configurations.
        paper_leaky: Whether the user has, with `--paper_leaky true`.
    Raises:
        ValueError: If one does and the user has not, or the user has and none does.
    """
    found = [is_leaky(model) for model in models]
    if any(found) and not paper_leaky:
        raise ValueError(
            "a Tensorized Transformer with paper_leaky=True reads the tokens that it predicts, so that its "
            "perplexities are not comparable with those of causal models; take one with paper_leaky=False, or give "
            "--paper_leaky true to reproduce the published figures"
        )
    if paper_leaky and not any(found):
        raise ValueError(
            "paper_leaky=True is for Tensorized Transformers, and none of the models is one; leave out --paper_leaky"
        )
