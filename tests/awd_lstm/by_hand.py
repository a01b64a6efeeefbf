"""An LSTM written out step by step, in the equations of the paper."""

import torch
from torch import Tensor


def lstm_by_hand(inputs: Tensor, weights: list[Tensor], state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (time, size) of inputs (time, d), and the state (size,) after them.

    Args:
        weights: W_ih (4 size, d), W_hh (4 size, size) and their biases; gates in the order i, f, g, o.
        state: Output and cell before, each (size,).
    """
    w_ih, w_hh, b_ih, b_hh = weights
    hidden, cell = state
    outputs = []
    for one in inputs:
        gates = w_ih @ one + b_ih + w_hh @ hidden + b_hh
        i, f, g, o = gates.chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs), hidden, cell


def read_by_hand(model, ids: Tensor) -> Tensor:
    """Return the logits (time, vocab) of one text (time,), by a model in evaluation mode."""
    values = model.model.embed_tokens.weight[ids]
    for layer in model.model.layers:
        zeros = values.new_zeros(layer.size)
        weights = [layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh]
        values = lstm_by_hand(values, weights, (zeros, zeros))[0]
    return values @ model.lm_head.weight.T + model.lm_head.bias
