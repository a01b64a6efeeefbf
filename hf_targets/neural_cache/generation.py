"""Logits processors that read a causal model's hidden states in `generate`; the continuous cache is one."""

from abc import abstractmethod
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, Self

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.neural_cache.cache import NO_WORD, CacheMemory, NeuralCache

_REFUSED = (
    "inside its `with` block hidden states are followed in texts that `generate` writes token by token: leave out "
    "assisted decoding, prompt lookup, drafts, guidance_scale, inputs_embeds, past_key_values and phrases"
)


@dataclass
class _Pass:
    """What a model has read since a text began or the last call of the processor: the mask, and states in order."""

    mask: Any
    states: list[Tensor] = field(default_factory=list)
    read_by_head: Tensor | None = None

    def keep(self, time: int) -> Tensor | None:
        """Return which positions of a prompt (batch, time) are no padding; None: none is."""
        mask = self.mask.get("full_attention") if isinstance(self.mask, dict) else self.mask
        if self.mask is None:
            return None
        if isinstance(mask, Tensor) and mask.dim() == 2:
            return mask[:, :time].bool()
        if isinstance(mask, Tensor) and mask.dim() == 4 and mask.shape[2] >= time:  # of a static cache
            # a position that is no padding sees itself, whatever the window
            own = mask[:, 0].diagonal(dim1=-2, dim2=-1)[:, :time]
            return own if own.dtype == torch.bool else own == 0
        raise ValueError(
            f"a cache leaves padding out, and a mask of type {type(self.mask).__name__} does not show all of it; "
            'generate with cache_implementation="dynamic", and attention "eager" or "sdpa"'
        )


class HiddenStateProcessor(LogitsProcessor):
    """Logits processor that reads, beside texts, the hidden states that their next words follow.

    Inside a `with` block hooks listen to the passes of the model. Its scores are logarithms of probabilities. It serves
    one call of `generate` after the other; for several threads at once make a processor each.

    Args:
        model: A causal model, of Transformers or ours, plain or under peft.
    Raises:
        ValueError: If the model has an encoder, or no base model below its output embeddings.
    """

    weight: float  # what is mixed in has this share; at 0 scores stay as they are

    def __init__(self, model: PreTrainedModel) -> None:
        core = unwrapped(model)
        base, self._head = core.base_model, core.get_output_embeddings()
        if core.config.is_encoder_decoder or base is core or self._head is None:
            lack = "an encoder" if core.config.is_encoder_decoder else "no base model below its output embeddings"
            raise ValueError(f"{type(core).__name__} has {lack}; hidden states are followed in a causal model's head")
        self._reader = getattr(base, "decoder", base)  # OPT calls its decoder, and not what is around it
        self._handles: list[Any] = []
        self._passes: dict[int, _Pass] = {}  # by thread: the model may serve others meanwhile
        self._time = -1  # of the texts of the last call

    def __enter__(self) -> Self:
        self._handles += [
            self._reader.register_forward_hook(self._listen, with_kwargs=True),
            self._head.register_forward_pre_hook(self._read_by_head),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._passes = [], {}

    @abstractmethod
    def _mixed(self, own: Tensor, input_ids: Tensor, states: Tensor, keep: Tensor | None) -> Tensor:
        """Return the model's own logarithms (batch, vocab) with what is mixed in.

        States are of the texts (batch, time), of which `keep` leaves out padding, or of their last tokens alone.
        """

    def _listen(self, module: Any, arguments: Any, *rest: Any) -> None:
        """Keep the last hidden states of a pass, and the mask of a prompt; a hook of torch."""
        if len(rest) < 2:  # torch leaves named arguments out of another thread's pass while it changes its hooks
            return
        (named, output), thread = rest, get_ident()
        states, past = output[0].detach(), named.get("past_key_values")
        if thread not in self._passes or past is None or past.get_seq_length() == states.shape[1]:  # a text begins
            self._passes[thread] = _Pass(None)
        self._passes[thread].mask = named.get("attention_mask")  # of the last part of a prompt that is read in parts
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
        found = self._passes.get(get_ident())
        if found is None or not found.states or len(found.states[0]) != len(input_ids):
            raise ValueError(_REFUSED)
        states, time = torch.cat(found.states, dim=1), input_ids.shape[1]
        found.states = []
        if states.shape[1] == time:
            self._check_head(found, states[:, -1])
        elif states.shape[1] != 1 or time != self._time + 1:
            raise ValueError(_REFUSED)
        self._time = time
        if not self.weight:
            return scores
        keep = found.keep(time) if states.shape[1] == time else None
        keep = None if keep is None else keep.to(scores.device)
        # of a model on several devices the states are on its last one
        return self._mixed(scores.float().log_softmax(dim=-1), input_ids, states.to(scores.device), keep)

    def _check_head(self, found: _Pass, last: Tensor) -> None:
        read = found.read_by_head
        if read is not None and not (read.shape == last.shape and torch.equal(read, last)):
            raise ValueError(
                "the output embeddings of this model read something else than its last hidden states (a transform, "
                "another network); a cache would compare the wrong states, so choose another model"
            )


class NeuralCacheProcessor(HiddenStateProcessor):
    """Mixes a cache of the text so far into the next word; `cache_processor` makes it.

    It follows beams, which change rows from one step to the next, by their tokens. Prompts are remembered, but not
    their padding.
    """

    def __init__(self, cache: NeuralCache, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.cache, self.weight = cache, cache.weight
        self._memory = CacheMemory(0, 1, torch.empty(1))
        self._last = torch.empty(0)  # (batch, d), the state that the next word will follow
        self._seen = torch.empty(0)  # (batch, time), the tokens of the last call

    def _mixed(self, own: Tensor, input_ids: Tensor, states: Tensor, keep: Tensor | None) -> Tensor:
        if states.shape[1] == input_ids.shape[1]:
            self._memory, words = self.cache.memory(len(states), states), input_ids[:, 1:]
            words = words if keep is None else words.masked_fill(~keep[:, :-1], NO_WORD)
        else:
            self._memory = self._followed(input_ids[:, :-1], self._memory)
            states, words = torch.cat([self._last[:, None], states], dim=1), input_ids[:, -1:]
        self._memory.append(states[:, :-1], words)
        self._last, self._seen = states[:, -1], input_ids.clone()
        return self.cache.mix(own, self._last, self._memory)

    def _followed(self, texts: Tensor, memory: CacheMemory) -> CacheMemory:
        """Return the memory with its rows where their texts (batch, time) are now."""
        if torch.equal(texts, self._seen):
            return memory
        same = (texts[:, None] == self._seen[None]).all(dim=-1)
        if not same.any(dim=1).all():
            raise ValueError(_REFUSED)
        chosen = same.long().argmax(dim=1)
        self._last = self._last[chosen]
        return memory.rows(chosen)


def cache_processor(cache: NeuralCache, model: PreTrainedModel) -> NeuralCacheProcessor:
    """Give a logits processor for `model.generate` inside the `with` block.

    >>> with cache_processor(NeuralCache(weight=0.2), model) as processor:  # doctest: +SKIP
    ...     model.generate(**inputs, logits_processor=[processor])

    The model, and errors, are those of `HiddenStateProcessor`.
    """
    return NeuralCacheProcessor(cache, model)
