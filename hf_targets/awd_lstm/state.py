"""The state of the LSTM layers as a cache of Transformers, which `generate` and a Trainer carry from call to call."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin


class LstmState(CacheLayerMixin):
    """The state of one LSTM layer: `keys` is its output (rows, d) after the last token, `values` its cell (rows, d).

    Its size does not depend on the length of the text. What has been read cannot be taken back.
    """

    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take over the first state."""
        self.is_initialized, self.device = True, key_states.device

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Replace the state.

        Args:
            args: The number of tokens that have been read since.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        self.num_tokens += int(args[0])
        return key_states, value_states

    def detach(self) -> None:
        """Keep the values of the state, and forget what they were computed from."""
        self._map(Tensor.detach)

    def get_seq_length(self) -> int:
        """Return the number of positions that have been read, padding included."""
        return self.num_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and the offset of a mask over all positions."""
        return self.num_tokens + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: a text may have any length."""
        return -1

    def reset(self) -> None:
        """Begin a new text."""
        self.keys, self.values, self.is_initialized, self.num_tokens = None, None, False, 0

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
        found = "a filled cache of another model" if isinstance(cache, DynamicCache) else f"a {type(cache).__name__}"
        raise ValueError(
            f"past_key_values must be an empty DynamicCache or one that this model has filled, got {found}; an LSTM "
            "has one state, so leave out past_key_values and cache_implementation"
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
    if hidden.shape != (num_rows, size) or cell.shape != (num_rows, size):  # torch.lstm does not look
        raise ValueError(
            f"layer {index} of past_key_values must be states of {num_rows} rows, as the text has, and width {size}, "
            f"got {tuple(hidden.shape)} and {tuple(cell.shape)}; give a new cache"
        )
    return hidden.to(like.device), cell.to(like.device)
