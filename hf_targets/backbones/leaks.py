"""Models that read the tokens that they predict: in a comparison they have a name that says so."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

LEAKY_SUFFIX = "-leaky"
"""How the name of such a model ends, in tables and folders."""


def is_leaky(model: PreTrainedModel | Any) -> bool:
    """Return whether a model, or the model that it wraps, reads the tokens that it predicts.

    Args:
        model: A model or its configuration; one with `paper_leaky` set, as a Tensorized Transformer has it.
    """
    if isinstance(model, nn.Module):  # a model under LoRA or a compiled one is no PreTrainedModel, but has one in it
        return any(is_leaky(part.config) for part in model.modules() if isinstance(part, PreTrainedModel))
    config = model
    while config is not None:
        if vars(config).get("paper_leaky"):
            return True
        config = vars(config).get("backbone")
    return False


def check_leaky_name(name: str, model: PreTrainedModel) -> None:
    """Check that a model that reads the tokens that it predicts has a name that says so, and that no other has.

    Raises:
        ValueError: If it has not, or another has.
    """
    if is_leaky(model) and not name.endswith(LEAKY_SUFFIX):
        raise ValueError(
            f"the model {name} has paper_leaky=True: it reads the tokens that it predicts, so that its perplexities "
            "are not comparable with those of causal models. Take one with paper_leaky=False; to reproduce the "
            f"published figures, name it {name}{LEAKY_SUFFIX}, as train_small_lm.py --paper_leaky true does"
        )
    if name.endswith(LEAKY_SUFFIX) and not is_leaky(model):
        raise ValueError(
            f"the name {name} is for a model that reads the tokens that it predicts, and this one does not; take "
            "another name"
        )
