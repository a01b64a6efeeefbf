"""A continuous cache in `generate`, of any causal model."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel

from hf_targets.neural_cache.cache import NeuralCache
from hf_targets.neural_cache.memory import NO_WORD, CacheMemory


class NeuralCacheProcessor(LogitsProcessor):
    """Logits processor that mixes a cache of the text so far into the next word; `cache_processor` makes it.

    Its scores are logarithms of probabilities. It follows beams, which change places from one step to the next, by
    their tokens. Prompts are remembered, but not their padding.
    """

    def __init__(self, cache: NeuralCache) -> None:
        self.cache = cache
        self._owner = get_ident()
        self._read: list[Tensor] = []
        self._keep: Tensor | None = None
        self._forget()

    def _forget(self) -> None:
        self._memory: CacheMemory | None = None
        self._last: Tensor | None = None  # (batch, d), the state that the next word will follow
        self._seen: Tensor | None = None  # (batch, time), the tokens of the last call

    def _listen(self, module: Any, arguments: Any, named: dict[str, Any], output: Any) -> None:
        """Keep the last hidden states of a pass that this thread makes, and which positions are no padding."""
        if get_ident() != self._owner:
            return
        self._read.append(output[0].detach())
        mask = named.get("attention_mask")
        self._keep = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities (batch, vocab) of the words that follow texts (batch, time).

        Raises:
            ValueError: If the text is none that the model has just read, as under assisted decoding.
        """
        if not self._read:
            raise ValueError("a cache needs the hidden states of the text, and the model has read none in this thread")
        states, self._read = torch.cat(self._read, dim=1), []
        time = input_ids.shape[1]
        if self._seen is None or time != self._seen.shape[1] + 1:
            self._forget()
        else:
            self._follow(input_ids)
        first = time if self._seen is None else 1
        if states.shape[:2] != (len(input_ids), first):
            raise ValueError(
                f"a cache needs the hidden states of {first} new tokens of {len(input_ids)} texts, got those of "
                f"{tuple(states.shape[:2])}: generate one token at a time, with use_cache, without assisted decoding"
            )
        if self._memory is None:
            self._memory = self.cache.memory(len(states), states)
        else:
            states = torch.cat([cast(Tensor, self._last)[:, None], states], dim=1)
        words = input_ids[:, time - states.shape[1] + 1 :]
        if self._keep is not None and self._seen is None:
            words = words.masked_fill(self._keep[:, : time - 1] == 0, NO_WORD)
        self._memory.append(states[:, :-1], words)
        self._last, self._seen = states[:, -1], input_ids.clone()
        return self.cache.mix(scores.float().log_softmax(dim=-1), self._last, self._memory)

    def _follow(self, input_ids: Tensor) -> None:
        """Put the rows of the memory where their texts are now."""
        seen = cast(Tensor, self._seen)
        before = input_ids[:, : seen.shape[1]]
        if before.shape == seen.shape and torch.equal(before, seen):
            return
        same = (before[:, None] == seen[None]).all(dim=-1)
        if not same.any(dim=1).all():
            raise ValueError("a cache must see every step of a text; make a processor for each call of generate")
        chosen = same.long().argmax(dim=1)
        self._memory = cast(CacheMemory, self._memory).rows(chosen)
        self._last = cast(Tensor, self._last)[chosen]


@contextmanager
def cache_processor(cache: NeuralCache, model: PreTrainedModel) -> Iterator[NeuralCacheProcessor]:
    """Give a logits processor for `model.generate` inside the `with` block, in this thread.

    >>> with cache_processor(NeuralCache(weight=0.2), model) as processor:  # doctest: +SKIP
    ...     model.generate(**inputs, logits_processor=[processor])

    Args:
        model: A causal model, of Transformers or ours. It stays as it is: its passes are listened to meanwhile.
    Raises:
        ValueError: If the model has an encoder, or no base model below its output embeddings.
    """
    if model.config.is_encoder_decoder or model.base_model is model:
        lack = "an encoder" if model.config.is_encoder_decoder else "no base model below its output embeddings"
        raise ValueError(f"{type(model).__name__} has {lack}; a cache needs a causal model with its head")
    processor = NeuralCacheProcessor(cache)
    base: Any = model.base_model
    reader = getattr(base, "decoder", base)  # OPT calls its decoder, and not what is around it
    handle = reader.register_forward_hook(processor._listen, with_kwargs=True)
    try:
        yield processor
    finally:
        handle.remove()
