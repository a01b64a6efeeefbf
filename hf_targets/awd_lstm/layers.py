"""The layers of an AWD-LSTM, and the dropout around them."""

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_targets.awd_lstm.configuration import AwdLstmConfig

EMBEDDING_RANGE = 0.1
"""New embeddings are uniform between minus this and this, as published."""


def dropout_mask(like: Tensor, shape: tuple[int, ...], share: float) -> Tensor:
    """Return a mask of a shape, in the type of a tensor: 0 with probability `share`, else 1 / (1 - share)."""
    return F.dropout(torch.ones(shape, dtype=like.dtype, device=like.device), share)


class WeightDropLstm(GradientCheckpointingLayer):
    """One LSTM layer whose recurrent weights are dropped, anew in each call in training, the same for all its steps.

    The dropped weights are given to the LSTM itself. `torch.nn.LSTM` keeps a list of its weights of its own, so that a
    program which replaces its `weight_hh_l0` may drop nothing at all.

    Args:
        config: Its `weight_dropout` is read in each call.
        input_size, size: Widths of what the layer reads and writes.
    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", section 2.
    """

    def __init__(self, config: AwdLstmConfig, input_size: int, size: int) -> None:
        super().__init__()
        self.config = config
        self.weight_ih = nn.Parameter(torch.empty(4 * size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * size, size))
        self.bias_ih = nn.Parameter(torch.empty(4 * size))
        self.bias_hh = nn.Parameter(torch.empty(4 * size))
        self.reset_parameters()

    @property
    def size(self) -> int:
        """Width of the output and of the state."""
        return self.weight_hh.shape[1]

    def reset_parameters(self) -> None:
        """Initialise all weights uniformly in +-1 / sqrt(size), as `torch.nn.LSTM` does."""
        bound = 1 / math.sqrt(self.size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs, and the state after them.

        Args:
            inputs: (rows, time, input_size), or with `batch_sizes` (steps, input_size), packed.
            hidden, cell: (rows, size), the state before.
            batch_sizes: (time,), the rows of each time step, on the CPU; never growing.
        Returns: (rows, time, size) or (steps, size), and twice (rows, size).
        """
        on_cpu = inputs.device.type == "cpu"  # where processors without bfloat16 have no LSTM for autocast
        with torch.autocast("cpu", enabled=False) if on_cpu else nullcontext():
            if on_cpu:
                inputs = inputs.to(self.weight_ih.dtype)
            state = [part.to(inputs.dtype)[None].contiguous() for part in (hidden, cell)]
            recurrent = F.dropout(self.weight_hh, self.config.weight_dropout, self.training)
            weights = [self.weight_ih, recurrent, self.bias_ih, self.bias_hh]
            if batch_sizes is None:
                outputs, hidden, cell = torch.lstm(inputs, state, weights, True, 1, 0.0, self.training, False, True)
            else:
                outputs, hidden, cell = torch.lstm(
                    inputs, batch_sizes, state, weights, True, 1, 0.0, self.training, False
                )
        return outputs, hidden[0], cell[0]
