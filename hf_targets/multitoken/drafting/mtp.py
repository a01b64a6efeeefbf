"""The cache of a text that heads of multi-token prediction draft from, each with keys and values of its own."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache

from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import embedding_rows
from hf_targets.multitoken.drafting.cache import RaggedCache
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache
from hf_targets.multitoken.model import MultiTokenModel
from hf_targets.multitoken.mtp import MtpHeads, Reading


class MtpCache(RaggedCache):
    """A ragged cache with layers of hidden states, and of the heads' keys and values, which move with the others.

    Head n reads drafted tokens at the last n - 1 positions of a pass. The next pass reads these again, with the tokens
    that were accepted, together with the new positions.

    Args:
        count: Number of the heads that draft.
        hidden, tokens: Of the prompt. Positions for which one is not known, as a cache was given, are not read.
    """

    def __init__(
        self,
        cache: Cache,
        mask: Bool[Tensor, "batch length"],
        model: MultiTokenModel,
        count: int,
        hidden: Tensor,
        tokens: Tensor,
    ) -> None:
        self._held = HiddenStateCache.find(cache) or HiddenStateCache()
        if self._held not in cache.layers:
            cache.layers.append(self._held)
        length = int(cache.get_seq_length())  # of a static cache it is a tensor
        if missing := length - self._held.get_seq_length():  # an ensemble has taken them in
            known = min(missing, hidden.shape[1], tokens.shape[1] + 1)
            before = self._held.last_steps() if known == missing else None
            seen = mask[:, -missing:].long()
            seen[:, : missing - known] = 0
            steps = torch.where(seen > 0, seen.cumsum(dim=1) + (-1 if before is None else before[:, None]), -1)
            states, ids = hidden.new_zeros(*steps.shape, hidden.shape[2]), torch.zeros_like(steps)
            states[:, missing - known :] = hidden[:, -known:]
            given = tokens[:, max(tokens.shape[1] - missing, 0) :]
            ids[:, missing - given.shape[1] :] = given
            self._held.extend(states, ids, steps, window=0)
        super().__init__(cache, mask)
        self._model, self._count, self._heads = model, count, DynamicCache()
        self._of_heads: list[Any] = self._heads.layers  # one a head, as soon as it has drafted
        self._stale = length  # positions that not all of the heads have read

    def keep(self, positions: Int[Tensor, "rows steps"], counts: Int[Tensor, "rows"], known: Sequence[int]) -> None:
        """Keep the first `counts` of `positions` in each row, as `RaggedCache` does."""
        super().keep(positions, counts, known)
        self._stale += max(known)

    def extend(self, hidden: Float[Tensor, "rows chunk _"], tokens: Int[Tensor, "rows chunk"]) -> None:
        """Take in a chunk that the model has read; the heads' own layers grow by positions to be overwritten."""
        if self._held.get_seq_length() < self.cache.get_seq_length():
            after = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
            self._held.extend(hidden, tokens, cast(Tensor, self._held.last_steps())[:, None] + after, window=0)
        for layer in self._of_heads:
            rows, heads, _, dim = layer.keys.shape
            layer.update(*layer.keys.new_zeros(2, rows, heads, tokens.shape[1], dim))

    def logits(self, drafted: Int[Tensor, "rows n"]) -> Float[Tensor, "rows _"]:
        """Return head n's logits after the next token and those drafted after it; call it for n = 1, 2 and so on."""
        model, n, heads = self._model, drafted.shape[1], cast(MtpHeads, self._model.heads)
        states, known = cast(Tensor, self._held.keys)[:, 0], cast(Tensor, self._held.values)[:, 0]
        if n == 1:
            self._state = states[:, -(self._stale + self._count - 1) :]
        again, is_new = self._state.shape[1], len(self._of_heads) < n
        tokens = torch.cat([known[..., 0], drafted], dim=1)[:, -again:]  # that of each position's n-th next position
        if not is_new:
            self._of_heads[n - 1].crop(-again)
        self._state = heads.depth(n, self._state, Reading.of(model.backbone, tokens, known[..., 1], self._heads))
        if is_new:
            self._layers.append(self._of_heads[n - 1])
            self.cache.layers.append(self._of_heads[n - 1])
        if n == self._count:
            self._stale = 0
        output = OutputMap.of(model.backbone, model.config.output_scale)
        rows = embedding_rows(output.layer, drafted) if heads.differences else None
        return heads.draft_logits(n, output, heads.complete(n, self._state[:, -1], rows))

    def end(self) -> None:
        """Take the heads' own layers out of the cache."""
        for layer in self._of_heads:
            self.cache.layers.remove(layer)
