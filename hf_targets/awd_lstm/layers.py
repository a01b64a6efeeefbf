"""The layers of an AWD-LSTM, the dropout around them, and their state as a cache of Transformers."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, DynamicCache
from transformers import initialization as init
from transformers.cache_utils import CacheLayerMixin
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
            has_gradients = torch.is_grad_enabled()  # cuDNN keeps what a backward pass needs in training mode alone
            if batch_sizes is None:
                outputs, hidden, cell = torch.lstm(inputs, state, weights, True, 1, 0.0, has_gradients, False, True)
            else:
                outputs, hidden, cell = torch.lstm(
                    inputs, batch_sizes, state, weights, True, 1, 0.0, has_gradients, False
                )
        return outputs, hidden[0], cell[0]


class LstmState(CacheLayerMixin):
    """The state of one LSTM layer: `keys` is its output (rows, d) after the last token, `values` its cell (rows, d).

    Its size does not depend on the length of the text. What has been read cannot be taken back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take over the device of the first state."""
        self.is_initialized, self.device = True, key_states.device

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Replace the state; `args` has the number of tokens that have been read since."""
        self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        self.cumulative_length += int(args[0])
        return key_states, value_states

    def detach(self) -> None:
        """Keep the values of the state, and forget what they were computed from."""
        self._map(Tensor.detach)

    def crop(self, tokens_to_remove: int) -> None:
        """Raise a ValueError if a token is to be taken back."""
        if tokens_to_remove:
            raise ValueError("an LSTM's state cannot be taken back, as drafts need; choose another assistant_model")

    def get_seq_length(self) -> int:
        """Return the number of positions that have been read, padding included."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and the offset of a mask over all positions."""
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: a text may have any length."""
        return -1

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        self._map(lambda part: part.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows of these indices."""
        self._map(lambda part: part[indices.to(part.device)])

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = change(self.keys), change(self.values)


def lstm_layers(cache: Cache | None) -> list[LstmState]:
    """Return the layers of a cache that `as_lstm_cache` gave; none without a cache."""
    return [] if cache is None else cast(list[LstmState], cache.layers)


def as_lstm_cache(cache: Cache | None, num_layers: int) -> Cache:
    """Return a cache with the states of so many layers: the given one, or a new one.

    An empty `DynamicCache` gets layers of ours, as `generate` and users make one for any model.

    Raises:
        ValueError: If it is another cache, or one that another model has filled.
    """
    cache = DynamicCache() if cache is None else cache
    layers: list[Any] = getattr(cache, "layers", [])
    if len(layers) == num_layers and all(isinstance(layer, LstmState) for layer in layers):
        return cache
    if not isinstance(cache, DynamicCache) or cache.get_seq_length():
        raise ValueError(
            f"past_key_values must be an empty DynamicCache or one that this model has filled, got another "
            f"{type(cache).__name__}; leave out past_key_values and cache_implementation"
        )
    layers[:] = [LstmState() for _ in range(num_layers)]
    cache.layer_class_to_replicate = None
    return cache


def states_of(cache: Cache | None, index: int, num_rows: int, like: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the state (rows, size) of a layer, 0 where nothing was read yet.

    Raises:
        ValueError: If the cache has another number of rows, or is of a model of other sizes.
    """
    layers = lstm_layers(cache)
    hidden, cell = (layers[index].keys, layers[index].values) if layers else (None, None)
    if hidden is None or cell is None:
        zeros = torch.zeros(num_rows, size, dtype=like.dtype, device=like.device)
        return zeros, zeros
    if hidden.shape != (num_rows, size):  # torch.lstm does not look
        raise ValueError(
            f"layer {index} of past_key_values must be states of {num_rows} rows and width {size}, got "
            f"{tuple(hidden.shape)}; give a new cache"
        )
    return hidden.to(like.device), cell.to(like.device)
