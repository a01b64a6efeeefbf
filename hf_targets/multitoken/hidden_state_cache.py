"""What earlier positions had to say of the tokens to come: one more layer of the key-value cache."""

from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer


class HiddenStateCache(DynamicLayer):
    """The last hidden states of all positions in the cache, with their tokens and their steps into the sequence.

    Beams reorder it and assisted decoding crops it, as they do every layer. Its keys are the hidden states (batch, 1,
    time, dim), its values the tokens and steps (batch, 1, time, 2): with as many key-value heads as query heads it adds
    1 / (2 * layers) to the cache.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take the types of the first states."""
        super().lazy_initialization(key_states, value_states)
        self.values = torch.tensor([], dtype=value_states.dtype, device=self.device)

    @classmethod
    def find(cls, cache: Cache) -> Self | None:
        """Return this layer of a cache, if there is one."""
        return next((layer for layer in cache.layers if isinstance(layer, cls)), None)

    @classmethod
    def check(cls, cache: Cache) -> None:
        """Raise an error if the cache cannot hold, or does not hold, what its positions predicted.

        Raises:
            ValueError: If it is not a dynamic cache, or was filled without an ensemble.
        """
        if not isinstance(cache, DynamicCache) or cache.offloading:
            kind = "an offloaded" if cache.offloading else f"a {type(cache).__name__}"
            raise ValueError(
                f"an ensemble keeps what earlier positions predicted in a DynamicCache, got {kind}; leave out "
                "cache_implementation, or pass use_cache=False"
            )
        layer = cls.find(cache)
        held = 0 if layer is None else layer.get_seq_length()
        if held != cache.get_seq_length():
            raise ValueError(
                f"the cache holds {cache.get_seq_length()} positions, and what {held} of them predicted: it was filled "
                "without an ensemble. Fill it with the same ensemble_weight, or start with a new one"
            )

    def last_steps(self) -> Int[Tensor, "batch"] | None:
        """Return the steps into the sequence of the last position, or None while there is none."""
        return self.values[:, 0, -1, 1] if self.values is not None and self.get_seq_length() else None

    def extend(
        self,
        hidden: Float[Tensor, "batch time dim"],
        tokens: Int[Tensor, "batch time"],
        steps: Int[Tensor, "batch time"],
        *,
        window: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Append positions, and return them behind the last `window` positions before them."""
        keys, values = self.update(hidden[:, None], torch.stack([tokens, steps], dim=-1)[:, None])
        kept = window + hidden.shape[1]
        return keys[:, 0, -kept:], values[:, 0, -kept:, 0], values[:, 0, -kept:, 1]
