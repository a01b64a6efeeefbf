"""A layer of the key-value cache that keeps hidden states of earlier positions, for the ensemble."""

from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer


class HiddenStateCache(DynamicLayer):
    """The last layer's hidden states of all cached positions, with their tokens and their steps into the sequence.

    Beam search reorders this layer and assisted decoding crops it, like any other layer. Its keys are the hidden states
    (batch, 1, time, dim), and its values are the tokens and steps (batch, 1, time, 2). If the model has as many
    key-value heads as query heads, the cache grows by a share of 1 / (2 * layers).
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Set the types of keys and values to those of the first states."""
        super().lazy_initialization(key_states, value_states)
        self.values = torch.tensor([], dtype=value_states.dtype, device=self.device)

    @classmethod
    def find(cls, cache: Cache) -> Self | None:
        """Return the layer of this class in a cache; None if there is none."""
        return next((layer for layer in cache.layers if isinstance(layer, cls)), None)

    @classmethod
    def check(cls, cache: Cache) -> None:
        """Raise an error if a cache cannot hold, or lacks, the hidden states of its positions.

        Raises:
            ValueError: If it is not a dynamic cache in memory, or was filled without an ensemble.
        """
        if not isinstance(cache, DynamicCache) or cache.offloading:
            kind = "an offloaded one" if cache.offloading else f"a {type(cache).__name__}"
            raise ValueError(f"an ensemble takes a DynamicCache, got {kind}; leave out cache_implementation")
        layer = cls.find(cache)
        held = 0 if layer is None else layer.get_seq_length()
        if held != cache.get_seq_length():
            raise ValueError(
                f"the cache holds {cache.get_seq_length()} positions, and hidden states of {held} of them: it was "
                "filled without an ensemble; start with a new cache"
            )

    def last_steps(self) -> Int[Tensor, "batch"] | None:
        """Return the steps into the sequence of the last position, or None if the layer is empty."""
        return self.values[:, 0, -1, 1] if self.values is not None and self.get_seq_length() else None

    def extend(
        self,
        hidden: Float[Tensor, "batch time dim"],
        tokens: Int[Tensor, "batch time"],
        steps: Int[Tensor, "batch time"],
        *,
        window: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Append positions, and return the last `window` earlier positions followed by the new ones.

        Returns: Hidden states, tokens and steps, shaped as the arguments but with up to `window` positions more.
        """
        keys, values = self.update(hidden[:, None], torch.stack([tokens, steps], dim=-1)[:, None])
        kept = window + hidden.shape[1]
        return keys[:, 0, -kept:], values[:, 0, -kept:, 0], values[:, 0, -kept:, 1]


def cache_of_text(cache: Cache) -> Cache:
    """Return the cache of the text's own positions: of an encoder-decoder model's cache, the part of self-attention."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
