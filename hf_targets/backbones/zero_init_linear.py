"""A linear layer with an initial weight of zero."""

from torch import nn


class ZeroInitLinear(nn.Linear):
    """A linear layer whose weight and bias are set to zero by the `_init_weights` of our models."""
