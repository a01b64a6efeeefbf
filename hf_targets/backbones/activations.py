"""Activation functions of Transformers, computed in fewer passes over memory."""

from torch import nn
from transformers.activations import NewGELUActivation


def fuse_gelu(model: nn.Module) -> None:
    """Let a model compute `gelu_new`, GPT-2's activation, in one pass instead of eight.

    Transformers writes the formula out in eight operations; torch has the same function, `gelu` with the approximation
    by tanh, as one. Results are equal up to rounding, which is once instead of eight times in half precision. Names of
    parameters and the configuration stay as they are.

    Args:
        model: Changed in place.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is NewGELUActivation:
                setattr(module, name, nn.GELU(approximate="tanh"))
