"""The continuous cache of Grave et al.: its settings, the window that it remembers, and the probabilities it gives."""

import math
from dataclasses import dataclass, field
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NO_WORD = -1
"""In place of a word where the window has nothing: before the text began, at padding, after a text's last word."""
_POSITIONS_AT_ONCE = 256


class CacheMemory:
    """The last W hidden states of each row and the words that followed them, as a ring.

    Attributes:
        states: (batch, W, d); the oldest is at `oldest`.
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
        """Return a memory of these rows, each perhaps several times, as beam search needs."""
        other = type(self)(len(chosen), self.words.shape[1], self.states[0, :1])
        other.states, other.words = self.states[chosen], self.words[chosen]
        other.counts, other.oldest = self.counts[chosen], self.oldest
        return other


@dataclass(frozen=True)
class NeuralCache:
    """A continuous cache: p(w) = (1 - lambda) p_model(w) + lambda p_cache(w).

    With the last W hidden states h_i before h_t and the words x_(i + 1) that followed them, p_cache(w) is the softmax
    of theta h_t . h_i over the window, summed where x_(i + 1) is w. Where the window has no word p is p_model.

    Hidden states of a trained Transformer are long: at theta 1 only the most similar one counts. With
    `relative` theta is divided by |h_t|^2; 20 to 40 suits SmolLM2, whose |h| is 46.

    awd-lstm-lm publishes W = 500, theta = 1, lambda = 0.1 for Penn Treebank, and 3785, 0.662, 0.1279 for WikiText-2.

    Raises:
        ValueError: If a setting is outside the range that its help text gives.
    Source: Grave, Joulin and Usunier 2017, "Improving Neural Language Models with a Continuous Cache", section 3.
    """

    window: int = field(default=500, metadata={"help": "W: hidden states that are remembered; 1 or more."})
    theta: float = field(default=1.0, metadata={"help": "Factor of the products; at 0 all states count alike."})
    weight: float = field(default=0.1, metadata={"help": "Lambda, the cache's share, in [0, 1)."})
    waits: bool = field(
        default=False,
        metadata={"help": "Whether the cache is silent until it has seen more than W words, as in awd-lstm-lm."},
    )
    relative: bool = field(
        default=False, metadata={"help": "Whether theta is divided by the square norm of the state that is compared."}
    )

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be 1 or more, got {self.window}")
        if not 0 <= self.theta < math.inf:
            raise ValueError(f"theta must be 0 or more, got {self.theta}")
        if not 0 <= self.weight < 1:
            raise ValueError(f"weight (lambda) must be in [0, 1), got {self.weight}")

    def memory(self, batch_size: int, like: Float[Tensor, "... dim"]) -> CacheMemory:
        """Return an empty memory of this window, for hidden states of the size, type and device of `like`."""
        return CacheMemory(batch_size, self.window, like)

    def target_probabilities(
        self,
        probabilities: Float[Tensor, "batch time"],
        states: Float[Tensor, "batch time dim"],
        words: Int[Tensor, "batch time"],
        memory: CacheMemory,
    ) -> Float[Tensor, "batch time"]:
        """Return the probabilities of the words that follow hidden states, and put both into the memory.

        Each position sees the window before it: part of it from the memory, part from these states. One matrix product
        serves 256 positions.

        Args:
            probabilities: Those of the model, for the same words.
            states: What the output embeddings read, in the order of the text.
            words: The word that follows each state; -100 where there is none, whose probability stays the model's.
        """
        found = []
        parts = (one.split(_POSITIONS_AT_ONCE, dim=1) for one in (probabilities, states, words))
        for model, queries, targets in zip(*parts, strict=True):
            cached, is_known = self._cached(queries, targets, memory)
            found.append(mix_targets(model, cached, self.weight, is_known & (targets >= 0)))
            memory.append(queries, targets)
        return torch.cat(found, dim=1)

    def _cached(self, queries: Tensor, targets: Tensor, memory: CacheMemory) -> tuple[Tensor, Tensor]:
        """Return p_cache of the targets (batch, time), and where the cache has a say."""
        old_states, old_words = memory.ordered()
        keys = torch.cat([old_states, queries.to(old_states.dtype)], dim=1)
        words = torch.cat([old_words, targets], dim=1)
        window, time = self.window, targets.shape[1]
        ages = torch.arange(time, device=words.device)[:, None] + window - torch.arange(window + time).to(words.device)
        seen = ((ages >= 1) & (ages <= window))[None] & (words >= 0)[:, None]
        weights = self._weights(queries, keys, seen)
        before = memory.counts[:, None] + (targets >= 0).cumsum(dim=1) - (targets >= 0).long()
        said = (weights * (words[:, None] == targets[..., None])).sum(dim=-1)
        return said, seen.any(dim=-1) & self._speaks(before)

    def _weights(
        self, queries: Float[Tensor, "batch time dim"], keys: Float[Tensor, "batch keys dim"], seen: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch time keys"]:
        """Return the softmax over the keys that each query sees; 0 where it sees none."""
        full = torch.promote_types(keys.dtype, torch.float32)
        queries = queries.to(full)
        if self.relative:
            queries = queries / queries.square().sum(dim=-1, keepdim=True).clamp(min=torch.finfo(full).tiny)
        scores = self.theta * (queries @ keys.to(full).mT)
        weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
        return weights.masked_fill(~seen, 0.0)  # where a query sees no key, softmax gives NaN

    def _speaks(self, counts: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Return whether the cache has a say after so many words."""
        return counts > (self.window if self.waits else 0)

    def mix(
        self, log_probabilities: Float[Tensor, "batch vocab"], state: Float[Tensor, "batch dim"], memory: CacheMemory
    ) -> Float[Tensor, "batch vocab"]:
        """Return the logarithms of p for the word that follows a hidden state, for all words of the vocabulary.

        Words whose logarithm is -inf are forbidden, and stay so: the cache's share goes to the other words.
        """
        known = memory.words >= 0
        weights = self._weights(state[:, None], memory.states, known[:, None])[:, 0]
        weights = weights.masked_fill(~self._speaks(memory.counts)[:, None], 0.0)
        return mix_words(log_probabilities, memory.words, weights, self.weight)


def mix_targets(
    own: Float[Tensor, "..."], other: Float[Tensor, "..."], share: float | Tensor, speaks: Bool[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Return (1 - share) own + share other, probabilities of the same words; `own` where the other is silent."""
    return torch.where(speaks, (1 - share) * own + share * other.to(own.dtype), own)


def mix_words(
    log_probabilities: Float[Tensor, "batch vocab"],
    words: Int[Tensor, "batch n"],
    weights: Float[Tensor, "batch n"],
    share: float,
) -> Float[Tensor, "batch vocab"]:
    """Return log((1 - share) p + share q), where q of a word is the sum of its weights; those of words below 0 are 0.

    Words whose logarithm is -inf are forbidden, and stay so: their share goes to the other words. A row whose weights
    are all 0 stays as it is.
    """
    other = torch.zeros_like(log_probabilities, dtype=weights.dtype).scatter_add_(1, words.clamp(min=0), weights)
    other = other.masked_fill(log_probabilities == -torch.inf, 0.0)
    allowed = other.sum(dim=1, keepdim=True)
    own = log_probabilities.to(weights.dtype) + math.log1p(-share)
    mixed = torch.logaddexp(own, (other / allowed).log() + (math.log(share) if share else -torch.inf))
    return torch.where(allowed != 0, mixed.to(log_probabilities.dtype), log_probabilities)  # NaN is no 0, and shows
