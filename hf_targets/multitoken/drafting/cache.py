"""The key-value cache of rows that keep different numbers of the tokens just read."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hf_targets.multitoken.drafting.drafts import Draft
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache


class RaggedCache:
    """A dynamic cache whose rows stay aligned on the right, with a mask of what each of them holds.

    Args:
        mask: What of the cache is attended, (batch, length). Its last position counts as just read: `keep` comes next.
    Raises:
        ValueError: If a layer of the cache cannot be rearranged.
    """

    def __init__(self, cache: Cache, mask: Bool[Tensor, "batch length"]) -> None:
        layers: list[Any] = cache.layers
        for layer in layers:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, HiddenStateCache):
                raise ValueError(
                    "drafting for several rows, or in trees, rearranges a dynamic key-value cache, and this one has a "
                    f"{type(layer).__name__}; generate row by row, without draft_branches"
                )
        self.cache = cache
        # what an ensemble kept of earlier positions does not grow without one
        self._layers = [one for one in layers if one.is_initialized and one.get_seq_length() == cache.get_seq_length()]
        self.mask, self._read = mask[:, :-1], mask[:, -1:]

    @property
    def length(self) -> int:
        """How many positions the cache holds."""
        return self.mask.shape[1]

    def select(self, rows: Bool[Tensor, "batch"]) -> None:
        """Keep these rows only."""
        if not rows.all():
            self.cache.batch_select_indices(rows.nonzero()[:, 0])
            self.mask = self.mask[rows]
            self._trim()

    def mask_for(self, draft: Draft, dtype: torch.dtype, *, tree: bool) -> Tensor | None:
        """Return the attention mask for the chunk read next: the last known token of each row, and its draft.

        Returns: Of a chain (rows, length + chunk), or None where everything is attended; of a tree the sum to be added
            to the attention scores, (rows, 1, chunk, length + chunk), in which a token sees only its own path.
        """
        self._read = self.mask.new_ones(draft.tokens.shape[0], draft.tokens.shape[1] + 1)
        if not tree:
            return None if self.mask.all() else torch.cat([self.mask, self._read], dim=1).long()
        visible = torch.cat([self.mask[:, None].expand(-1, self._read.shape[1], -1), draft.ancestors()], dim=2)
        blocked = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        return blocked.masked_fill(~visible, torch.finfo(dtype).min)[:, None]

    def keep(self, positions: Int[Tensor, "rows steps"], counts: Int[Tensor, "rows"]) -> None:
        """Of the positions just read keep each row's first `counts` of `positions`, in that order.

        Rows that keep fewer move to the right, so that all end at the last position again.
        """
        num_read, longest = self._read.shape[1], int(counts.max())
        positions, steps = positions[:, :longest], torch.arange(longest, device=positions.device)
        if not ((positions == steps) | (steps >= counts[:, None])).all():
            self._move(positions, num_read)
        self.mask = torch.cat([self.mask, self._read.gather(1, positions)], dim=1)
        shift = longest - counts
        ragged = bool(shift.any())
        if ragged:
            self._shift(shift)
        self.cache.crop(longest - num_read)
        if ragged:
            index = torch.arange(self.length, device=positions.device) - shift[:, None]
            self.mask = self.mask.gather(1, index.clamp(min=0)) & (index >= 0)
            self._trim()

    def _shift(self, shift: Int[Tensor, "rows"]) -> None:
        for layer in self._layers:
            index = (torch.arange(layer.keys.shape[-2], device=shift.device) - shift[:, None]).clamp(min=0)
            layer.keys, layer.values = _gather(layer.keys, index), _gather(layer.values, index)

    def _trim(self) -> None:
        """Drop the first positions that no row attends to."""
        unused = int((~self.mask).all(dim=0).int().cumprod(dim=0).sum())
        if not unused:
            return
        self.mask = self.mask[:, unused:]
        for layer in self._layers:
            kept = min(layer.keys.shape[-2], self.length)
            layer.keys, layer.values = layer.keys[..., -kept:, :], layer.values[..., -kept:, :]
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = self.length

    def _move(self, positions: Int[Tensor, "rows kept"], num_read: int) -> None:
        for layer in self._layers:
            start = layer.keys.shape[-2] - num_read
            for states in (layer.keys, layer.values):
                states[..., start : start + positions.shape[1], :] = _gather(states, start + positions)


def _gather(states: Tensor, index: Int[Tensor, "rows kept"]) -> Tensor:
    return states.take_along_dim(index[:, None, :, None], dim=2)
