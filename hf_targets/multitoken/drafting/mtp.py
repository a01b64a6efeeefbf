"""The text as heads of multi-token prediction read it in the drafting loop, each position once or a few times."""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import embedding_rows
from hf_targets.multitoken.drafting.cache import RaggedCache
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache
from hf_targets.multitoken.model import MultiTokenModel
from hf_targets.multitoken.mtp import MtpHeads, Reading


class MtpText:
    """Hidden states, tokens, and keys and values of each head, in layers that grow with the model's cache.

    Head n reads drafted tokens at the last n - 1 positions of a pass. The next pass reads these again, with the tokens
    that were accepted, together with the new positions.

    Args:
        count: Number of the heads that draft.
    """

    def __init__(self, model: MultiTokenModel, count: int) -> None:
        self._model, self._count, self._own = model, count, DynamicCache()
        self._layers: list[Any] = self._own.layers  # one a head, as soon as it has drafted
        self._stale = 0  # positions that not all of the heads have read

    def read_prompt(self, outputs: Any, tokens: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch length"]) -> None:
        """Take in what the model computed of the prompt, before its cache becomes a `RaggedCache`.

        Heads do not see positions whose hidden state or token is not known: of a cache that was given, of embeddings.

        Args:
            mask: True where a position of the cache is attended.
        """
        cache, hidden = outputs.past_key_values, outputs.last_hidden_state
        self._held = HiddenStateCache.find(cache) or HiddenStateCache()
        if self._held not in cache.layers:
            cache.layers.append(self._held)
        self._stale = cache.get_seq_length()
        missing = self._stale - self._held.get_seq_length()
        if not missing:  # an ensemble has taken them in
            return
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

    def begin(self, cache: RaggedCache) -> None:
        """Move with this cache from now on."""
        self._cache = cache

    def end(self) -> None:
        """Take the heads' own layers out of the cache."""
        for layer in self._layers:
            self._cache.remove(layer)

    def keep(self, taken: Int[Tensor, "rows"]) -> None:
        """Count the positions that were kept of the last pass."""
        self._stale += int(taken.max())

    def extend(self, outputs: Any, chunk: Int[Tensor, "rows chunk"]) -> None:
        """Take in what the model computed of a chunk; the heads' own layers grow by positions to be overwritten."""
        if self._held.get_seq_length() < outputs.past_key_values.get_seq_length():
            after = torch.arange(1, chunk.shape[1] + 1, device=chunk.device)
            steps = cast(Tensor, self._held.last_steps())[:, None] + after
            self._held.extend(outputs.last_hidden_state, chunk, steps, window=0)
        for layer in self._layers:
            rows, heads, _, dim = layer.keys.shape
            empty = layer.keys.new_zeros(rows, heads, chunk.shape[1], dim)
            layer.update(empty, empty)

    def logits(self, drafted: Int[Tensor, "rows n"]) -> Float[Tensor, "rows _"]:
        """Return head n's logits after the next token and those drafted after it; call it for n = 1, 2 and so on."""
        model, n, heads = self._model, drafted.shape[1], cast(MtpHeads, self._model.heads)
        states, known = cast(Tensor, self._held.keys)[:, 0], cast(Tensor, self._held.values)[:, 0]
        if n == 1:
            self._state = states[:, -(self._stale + self._count - 1) :]
        again = self._state.shape[1]
        tokens = torch.cat([known[..., 0], drafted], dim=1)[:, -again:]  # that of each position's n-th next position
        new = len(self._layers) < n
        if not new:
            self._layers[n - 1].crop(-again)
        reading = Reading.of(model.backbone, tokens, known[..., 1], self._own)
        self._state = heads.depth(n, self._state, reading)
        if new:
            self._cache.add(self._layers[n - 1])
        if n == self._count:
            self._stale = 0
        output = OutputMap.of(model.backbone, model.config.output_scale)
        rows = embedding_rows(output.layer, drafted) if heads.differences else None
        return heads.draft_logits(n, output, heads.complete(n, self._state[:, -1], rows))
