"""The window of a continuous cache: the last hidden states and the words that followed them, as a ring."""

from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

NO_WORD = -1
"""In place of a word where the window has nothing: before the text began, at padding, after a text's last word."""


class CacheMemory:
    """The last W hidden states of each row and the words that followed them.

    Attributes:
        states: (batch, W, d), a ring: the oldest is at `oldest`.
        words: (batch, W), `NO_WORD` where there is nothing.
        counts: (batch,), how many words the memory has ever been given.
    """

    def __init__(self, batch_size: int, window: int, like: Float[Tensor, "... dim"]) -> None:
        """Make an empty memory for hidden states of the size, type and device of `like`."""
        self.states = like.new_zeros(batch_size, window, like.shape[-1])
        self.words = torch.full((batch_size, window), NO_WORD, device=like.device)
        self.counts = torch.zeros(batch_size, dtype=torch.long, device=like.device)
        self.oldest = 0

    def append(self, states: Float[Tensor, "batch time dim"], words: Int[Tensor, "batch time"]) -> None:
        """Put in hidden states and the words that follow them, below 0 for none, in place of the oldest."""
        window, time = self.words.shape[1], words.shape[1]
        self.counts += (words >= 0).sum(dim=1)
        kept = min(window, time)
        slots = (self.oldest + torch.arange(kept, device=words.device)) % window
        self.states[:, slots] = states[:, time - kept :].to(self.states.dtype)
        self.words[:, slots] = words[:, time - kept :].clamp(min=NO_WORD)
        self.oldest = (self.oldest + kept) % window

    def ordered(self) -> tuple[Float[Tensor, "batch window dim"], Int[Tensor, "batch window"]]:
        """Return states and words from the oldest to the newest."""
        return self.states.roll(-self.oldest, dims=1), self.words.roll(-self.oldest, dims=1)

    def rows(self, chosen: Int[Tensor, "rows"]) -> Self:
        """Return a memory of these rows, each perhaps several times: what beam search asks for."""
        other = type(self)(len(chosen), self.words.shape[1], self.states[0, :1])
        other.states, other.words = self.states[chosen], self.words[chosen]
        other.counts, other.oldest = self.counts[chosen], self.oldest
        return other
