"""A layer that the first step of training finds at zero, whatever a model's other layers start as."""

from torch import nn


class ZeroInitLinear(nn.Linear):
    """A linear layer that `_init_weights` of our models starts at zero, its bias too."""
