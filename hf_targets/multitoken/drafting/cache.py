"""A key-value cache whose rows keep different numbers of the tokens read last."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, cache_utils
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from hf_targets.multitoken.drafting.drafts import Draft
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache, cache_of_text

MOST_UNUSED = 0.125
"""The share of a cache that rejected tokens may take where they can stay: to hide them costs less than to move rows."""
MOST_PENDING = 8
"""Pending tokens of a `StateCache` up to which a pass has a draft; a pass without one takes them all in."""
_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    HiddenStateCache,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    StaticLayer,
    getattr(cache_utils, "DummyLayer", None),  # of layers that read another one's keys; not in Transformers 5.19
)


def check_layers(cache: Cache) -> None:
    """Raise a ValueError if a layer of a cache is of a kind whose tokens or states cannot be rearranged."""
    for layer in cache_of_text(cache).layers:
        empty_window = type(layer) is StaticSlidingWindowLayer and not layer.get_seq_length()
        if type(layer) not in _LAYERS and not empty_window:
            raise ValueError(
                f"drafting takes a cache of layers from which it can drop the last tokens, and this one has a "
                f"{type(layer).__name__}; leave out cache_implementation, or give an empty cache"
            )


def widen_windows(cache: Cache, length: int) -> None:
    """Let empty static layers with a window hold so many tokens, the whole text, or as many as the longest layer.

    They would overwrite what leaves the window, also for tokens that are then rejected. The model's mask hides it.
    """
    layers = cache_of_text(cache).layers
    length = max([length, *(layer.max_cache_len for layer in layers if isinstance(layer, StaticLayer))])
    for index, layer in enumerate(layers):
        if type(layer) is StaticSlidingWindowLayer:
            layers[index] = StaticLayer(length)


def has_state(cache: Cache) -> bool:
    """Return whether a layer of a cache keeps a state of the text, as those of Mamba do."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache_of_text(cache).layers)


class RaggedCache:
    """A cache whose rows hold different positions, with a mask of these; the last one is held by all rows.

    Args:
        cache: Of a causal model or of an encoder-decoder model, whose cross-attention stays as it is.
        mask: True where a position of the cache is attended, (batch, length). The last position counts as just read:
            call `keep` next.
        gaps: Whether the model reads a text right that has rejected tokens in between, which the mask hides.

    Attributes:
        pending: Tokens of the text before the last one that the cache has not taken in; the next pass reads them too.
        longest: Positions that a static cache has room for; None: it grows.
        in_step: Whether all rows must keep the same number of tokens.
    """

    in_step = False

    def __init__(self, cache: Cache, mask: Bool[Tensor, "batch length"], *, gaps: bool = False) -> None:
        layers: list[Any] = cache_of_text(cache).layers
        self.cache = cache
        # a layer of hidden states that an earlier call left does not grow when this call has no ensemble
        self._layers: list[Any] = [
            layer
            for layer in layers
            if isinstance(layer, DynamicLayer | StaticLayer)
            and layer.is_initialized
            and layer.get_seq_length() == cache.get_seq_length()
        ]
        self._convolutions = [
            layer for layer in layers if isinstance(layer, LinearAttentionLayer) and layer not in self._layers
        ]
        static = (layer.max_cache_len for layer in self._layers if isinstance(layer, StaticLayer))
        self.longest = min(static, default=None)
        self._gaps = gaps and all(type(layer) is DynamicLayer for layer in self._layers)
        self.mask, self._read = mask[:, :-1], mask[:, -1:]
        self._attended: list[int] = (mask.sum(dim=1) - 1).tolist()  # positions of each row; the last one always counts
        self.pending, self._tree = 0, False

    @property
    def length(self) -> int:
        """Number of positions in the cache."""
        return self.mask.shape[1]

    def select(self, rows: Bool[Tensor, "batch"]) -> None:
        """Keep only the rows where `rows` is true."""
        self.cache.reorder_cache(cast(Any, rows.nonzero()[:, 0]))
        self.mask = self.mask[rows]
        self._attended = self.mask.sum(dim=1).tolist()
        self._trim(int((~self.mask).all(dim=0).int().cumprod(dim=0).sum()))

    def mask_for(self, draft: Draft, dtype: torch.dtype) -> Tensor | None:
        """Return the attention mask for the next chunk: pending tokens, the last one of each row, then its draft.

        Returns: For a chain, 1 where attended, (rows, length + chunk), or None if all that the cache has are. For a
            tree, the term to add to the attention scores, (rows, 1, chunk, length + chunk): a token sees only its path.
        """
        self._read = self.mask.new_ones(draft.tokens.shape[0], self.pending + 1 + draft.tokens.shape[1])
        self._tree = draft.is_tree
        if not self._tree:
            whole = self.longest is None and min(self._attended) == self.length
            return None if whole else torch.cat([self.mask, self._read], dim=1).long()
        visible = torch.cat([self.mask[:, None].expand(-1, self._read.shape[1], -1), draft.ancestors()], dim=2)
        visible = visible if self.longest is None else F.pad(visible, (0, self.longest - visible.shape[2]))
        blocked = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        return blocked.masked_fill(~visible, torch.finfo(dtype).min)[:, None]

    def keep(self, positions: Int[Tensor, "rows steps"], counts: Int[Tensor, "rows"], known: Sequence[int]) -> None:
        """Keep the first `counts` of `positions` in each row, in that order, and drop the rest of the last chunk.

        Gaps are left in rows that keep fewer, up to a share of the cache; then their positions move to the right.

        Args:
            positions: Indices into the chunk read last; in a chain they are the first ones.
            known: `counts` on the host.
        """
        num_read, longest = self._read.shape[1], max(known)
        if num_read == 1:  # a pass without drafts
            self.mask = torch.cat([self.mask, self._read], dim=1)
            self._attended = [count + 1 for count in self._attended]
            self._crop(0)  # layers with a window drop what has left it
            return
        if self._tree and longest > 1:
            self._move(positions[:, :longest], num_read)
        kept = torch.arange(num_read, device=counts.device) < counts[:, None]
        self.mask = torch.cat([self.mask, kept], dim=1)
        self._attended = [count + new for count, new in zip(self._attended, known, strict=True)]
        unused = self.length - num_read + longest - max(self._attended)
        if min(known) < longest and not (self._gaps and unused <= MOST_UNUSED * self.length):
            self._align()
        else:
            self._crop(num_read - longest)
            self.mask = self.mask[:, : self.length - num_read + longest]

    def align(self) -> None:
        """Move each row's positions to the right, so that no gaps are left."""
        if (self.mask[:, 1:] < self.mask[:, :-1]).any():
            self._align()

    def _align(self) -> None:
        index = self.mask.int().argsort(dim=1, stable=True)
        self.mask = self.mask.gather(1, index)
        for layer in self._layers:
            held = min(layer.keys.shape[-2], self.length)
            of_layer = (index[:, -held:] - (self.length - held)).clamp(min=0)
            _hold(layer, _gather(layer.keys, of_layer), _gather(layer.values, of_layer))
        self._crop(0)
        self._trim(self.length - max(self._attended))

    def _crop(self, count: int) -> None:
        """Drop the last `count` positions of all layers, and what has left a window."""
        if self.longest is None:
            return self.cache.crop(-count)
        for layer in (*self._layers, *self._convolutions):
            if isinstance(layer, StaticLayer):
                layer.cumulative_length.sub_(count)  # the next positions are written over these
            else:
                layer.crop(-count)

    def _trim(self, unused: int) -> None:
        """Drop the first positions, which no row attends to."""
        if not unused:
            return
        self.mask = self.mask[:, unused:]
        for layer in self._layers:
            end, kept = (min(layer.keys.shape[-2], length) for length in (self.length + unused, self.length))
            _hold(layer, layer.keys[..., end - kept : end, :], layer.values[..., end - kept : end, :])
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = self.length

    def _move(self, positions: Int[Tensor, "rows kept"], num_read: int) -> None:
        for layer in self._layers:
            start = min(layer.keys.shape[-2], self.length + num_read) - num_read
            for states in (layer.keys, layer.values):
                index = (start + positions)[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
                states[..., start : start + positions.shape[1], :] = states.gather(2, index)


class StateCache(RaggedCache):
    """A cache with layers that keep a state of the text, from which no token can be dropped.

    When a draft is not accepted as a whole, all layers go back to where they were before it, and the next pass reads
    the accepted tokens again, before the next draft. Rows cannot be moved in a state, and so remain in step.
    """

    in_step = True

    def __init__(self, cache: Cache, mask: Bool[Tensor, "batch length"]) -> None:
        super().__init__(cache, mask)
        states = (layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin))
        self._states = [layer for layer in states if not layer.is_croppable]
        self._before: list[dict[int, Tensor | None]] = []

    def mask_for(self, draft: Draft, dtype: torch.dtype) -> Tensor | None:
        """Return the attention mask for the next chunk, and keep a copy of the states if it has a draft."""
        if draft.depths:
            kept = [layer.recurrent_states.items() for layer in self._states]
            self._before = [{at: None if one is None else one.clone() for at, one in states} for states in kept]
        return super().mask_for(draft, dtype)

    def keep(self, positions: Int[Tensor, "rows steps"], counts: Int[Tensor, "rows"], known: Sequence[int]) -> None:
        """Keep the first `counts` of `positions`, as many in each row that goes on."""
        longest, num_read = max(known), self._read.shape[1]
        if self._states and self.pending + longest < num_read:
            for layer, states in zip(self._states, self._before, strict=True):
                layer.recurrent_states = states
            self._crop(num_read)
            self.pending += longest
            return
        rejected = num_read - self.pending - longest
        self._attended = [count + num_read - rejected for count in self._attended]
        self.mask = torch.cat([self.mask, self._read[:, : num_read - rejected]], dim=1)
        self._crop(rejected)
        self.pending = 0


def ragged_cache(cache: Cache, mask: Bool[Tensor, "batch length"], *, gaps: bool) -> RaggedCache:
    """Return a ragged cache of what a model has read; see `RaggedCache`."""
    return StateCache(cache, mask) if has_state(cache) else RaggedCache(cache, mask, gaps=gaps)


def _hold(layer: Any, keys: Tensor, values: Tensor) -> None:
    """Let a layer hold these positions and no others; a static layer keeps its tensors, which a graph may know."""
    if not isinstance(layer, StaticLayer):
        layer.keys, layer.values = keys, values
        return
    held: Any = layer
    for whole, part in ((held.keys, keys), (held.values, values)):
        whole[..., : part.shape[-2], :] = part.clone()  # which may overlap
    layer.cumulative_length.fill_(keys.shape[-2])


def _gather(states: Tensor, index: Int[Tensor, "rows kept"]) -> Tensor:
    """Return the states (rows, heads, kept, dim) at these positions, copied a position at a time."""
    rows, heads, time, dim = states.shape
    first = torch.arange(0, rows * heads * time, time, device=states.device).view(rows, heads, 1)
    chosen = states.reshape(-1, dim).index_select(0, (first + index[:, None]).flatten())
    return chosen.view(rows, heads, -1, dim)
