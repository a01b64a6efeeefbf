"""A continuous cache in `generate`, of any causal model."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.neural_cache.cache import NeuralCache
from hf_targets.neural_cache.memory import NO_WORD, CacheMemory

_REFUSED = (
    "a cache follows texts that `generate` writes token by token: leave out assisted decoding, prompt lookup, drafts, "
    "guidance_scale, inputs_embeds, past_key_values and phrases"
)


class NeuralCacheProcessor(LogitsProcessor):
    """Logits processor that mixes a cache of the text so far into the next word; `cache_processor` makes it.

    Its scores are logarithms of probabilities. It follows beams, which change places from one step to the next, by
    their tokens. Prompts are remembered, but not their padding. It serves one call of `generate` after the other, all
    in one thread.
    """

    def __init__(self, cache: NeuralCache) -> None:
        self.cache = cache
        self._thread: int | None = None  # that calls it, once it has
        self._passes: dict[int, _Pass] = {}  # by the thread that made it
        self._memory: CacheMemory | None = None
        self._last = torch.empty(0)  # (batch, d), the state that the next word will follow
        self._seen = torch.empty(0)  # (batch, time), the tokens of the last call

    def _listen(self, module: Any, arguments: Any, *rest: Any) -> None:
        """Keep the last hidden states of a pass, and which positions of a prompt are no padding.

        Args:
            rest: The named arguments of the pass, and its output. Torch leaves the former out of another thread's pass
                while it registers this hook or removes it.
        """
        thread = get_ident()
        if self._thread not in (None, thread) or len(rest) < 2:
            return
        named, output = rest
        states, past = output[0].detach(), named.get("past_key_values")
        if thread not in self._passes or past is None or past.get_seq_length() == states.shape[1]:  # a text begins
            self._passes[thread] = _Pass(named.get("attention_mask"))
        self._passes[thread].states.append(states)

    def _read_by_head(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """Keep the last state that the output embeddings read, which must be the one that is remembered."""
        if (found := self._passes.get(get_ident())) is not None and isinstance(inputs[0], Tensor):
            found.read_by_head = inputs[0].detach()[:, -1]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities (batch, vocab) of the words that follow texts (batch, time).

        Raises:
            ValueError: If the model has not just read these texts token by token, as under assisted decoding, or its
                output embeddings read something else than its last hidden states.
        """
        self._thread = get_ident()
        found = self._passes.get(self._thread)
        if found is None or not found.states:
            raise ValueError(_REFUSED)
        states = torch.cat(found.states, dim=1)
        found.states = []
        batch, time = input_ids.shape
        if states.shape[0] != batch:
            raise ValueError(_REFUSED)
        if states.shape[1] == time:
            self._check_head(found, states[:, -1])
            self._memory, words = self.cache.memory(batch, states), input_ids[:, 1:]
            keep = found.keep(time)
            words = words if keep is None else words.masked_fill(~keep[:, :-1], NO_WORD)
        elif self._memory is not None and states.shape[1] == 1 and time == self._seen.shape[1] + 1:
            self._follow(input_ids)
            states, words = torch.cat([self._last[:, None], states], dim=1), input_ids[:, -1:]
        else:
            raise ValueError(_REFUSED)
        self._memory.append(states[:, :-1], words)
        self._last, self._seen = states[:, -1], input_ids.clone()
        return self.cache.mix(scores.float().log_softmax(dim=-1), self._last, self._memory)

    def _check_head(self, found: "_Pass", last: Tensor) -> None:
        read = found.read_by_head
        if read is not None and not (read.shape == last.shape and torch.equal(read, last)):
            raise ValueError(
                "the output embeddings of this model read something else than its last hidden states (a transform, "
                "another network); a cache would compare the wrong states, so choose another model"
            )

    def _follow(self, input_ids: Tensor) -> None:
        """Put the rows of the memory where their texts are now."""
        before = input_ids[:, :-1]
        if torch.equal(before, self._seen):
            return
        same = (before[:, None] == self._seen[None]).all(dim=-1)
        if not same.any(dim=1).all():
            raise ValueError(_REFUSED)
        chosen = same.long().argmax(dim=1)
        self._memory = cast(CacheMemory, self._memory).rows(chosen)
        self._last = self._last[chosen]


class _Pass:
    """What a model has read since a text began or the last call of the processor: the mask, and states in order."""

    def __init__(self, mask: Any) -> None:
        self.mask = mask
        self.states: list[Tensor] = []
        self.read_by_head: Tensor | None = None

    def keep(self, time: int) -> Tensor | None:
        """Return which positions of a prompt (batch, time) are no padding; None: none is.

        Raises:
            ValueError: If the mask does not tell.
        """
        mask = self.mask.get("full_attention") if isinstance(self.mask, dict) else self.mask
        if mask is None and self.mask is None:
            return None
        if isinstance(mask, Tensor) and mask.dim() == 2:
            return mask[:, :time].bool()
        if isinstance(mask, Tensor) and mask.dim() == 4:  # of a static cache: what the last position sees
            last = mask[:, 0, -1, :time]
            return last if last.dtype == torch.bool else last == 0
        raise ValueError(
            f"a cache leaves padding out, and a mask of type {type(self.mask).__name__} does not show it; generate "
            'with cache_implementation="dynamic", and attention "eager" or "sdpa"'
        )


@contextmanager
def cache_processor(cache: NeuralCache, model: PreTrainedModel) -> Iterator[NeuralCacheProcessor]:
    """Give a logits processor for `model.generate` inside the `with` block.

    >>> with cache_processor(NeuralCache(weight=0.2), model) as processor:  # doctest: +SKIP
    ...     model.generate(**inputs, logits_processor=[processor])

    Args:
        model: A causal model, of Transformers or ours, plain or under peft. It stays as it is: its passes are listened
            to meanwhile. For several threads at once make a processor each.
    Raises:
        ValueError: If the model has an encoder, or no base model below its output embeddings.
    """
    core = unwrapped(model)
    base, head = core.base_model, core.get_output_embeddings()
    if core.config.is_encoder_decoder or base is core or head is None:
        lack = "an encoder" if core.config.is_encoder_decoder else "no base model below its output embeddings"
        raise ValueError(f"{type(core).__name__} has {lack}; a cache needs a causal model with its head")
    processor = NeuralCacheProcessor(cache)
    reader = getattr(base, "decoder", base)  # OPT calls its decoder, and not what is around it
    handles = [
        reader.register_forward_hook(processor._listen, with_kwargs=True),
        head.register_forward_pre_hook(processor._read_by_head),
    ]
    try:
        yield processor
    finally:
        for handle in handles:
            handle.remove()
