"""Drafts that a smaller model writes for all rows at once."""

import inspect
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.weight_access import execution_device
from hf_targets.multitoken.drafting.cache import MOST_UNUSED, RaggedCache, has_state
from hf_targets.multitoken.drafting.drafts import Draft, empty_draft
from hf_targets.multitoken.drafting.request import LEARNT_PROMPTS

_PADDING = 0.01
"""The share of its embeddings by which a model may have more than another one with the same tokenizer."""


class AssistantDrafts:
    """The drafts of a causal model with a cache of its own: its most probable tokens, as long as it is sure of them.

    Before a draft it reads in one pass what the rows have gained since the last one. What it drafts leaves its cache
    again. Rows that have gained less than others get gaps there, which its mask hides; many gaps are closed.

    Args:
        model: With the tokenizer of the model that verifies; its embeddings may be padded to another number of rows.
        size: Tokens of the model that verifies.
        padding: How many tokens of padding each row begins with, (batch,).
        threshold: Of the probability from which on the model is sure of a token.
    """

    def __init__(self, model: PreTrainedModel, size: int, padding: Int[Tensor, "batch"], threshold: float) -> None:
        self._model, self._threshold, device = model, threshold, execution_device(model)
        self._padding, self._limit = padding.to(device), position_limit(model)
        self._rows, self._read = torch.arange(len(padding), device=device), torch.zeros_like(self._padding)
        self._mask = self._padding.new_zeros(len(padding), 0)
        self._cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        self._cache.activate_past_recording()
        self._size, self._own_size = size, model.config.get_text_config().vocab_size
        taken = inspect.signature(unwrapped(model).forward).parameters
        self._takes_positions = "position_ids" in taken
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}

    def draft(
        self, ids: Int[Tensor, "rows _"], lengths: Int[Tensor, "rows"], rows: Int[Tensor, "rows"], count: int
    ) -> Draft:
        """Return up to `count` tokens after each row; fewer, or none, where the model is not sure.

        Args:
            ids, lengths: The texts, with their padding on the left, and how many tokens each has.
            rows: Their numbers in the batch; rows that have ended do not come again.
        """
        device, own = ids.device, self._rows.device
        self._select(rows.to(own))
        lengths = lengths.to(own)
        width = int((lengths - self._read).max())
        if self._limit is not None:
            count = min(count, self._limit - self._mask.shape[1] - width)
        if count < 1:
            return empty_draft(len(rows), device)
        at = lengths[:, None] + torch.arange(-width, 0, device=own)
        is_new = (at >= self._read[:, None]) & (at >= self._padding[:, None])
        logits = self._logits(ids.to(own).gather(1, at.clamp(min=0)), is_new)
        self._read, length = lengths, self._mask.shape[1]
        tokens, sure = [], [torch.ones_like(lengths, dtype=torch.bool)]
        while len(tokens) < count:
            highest, token = logits.float().softmax(dim=-1).max(dim=-1)
            sure.append(sure[-1] & (highest >= self._threshold))
            if not sure[-1].any():
                break
            tokens.append(token)
            if len(tokens) < count:
                logits = self._logits(token[:, None], sure[0][:, None])
        self._cache.crop(length - self._mask.shape[1])
        self._mask = self._mask[:, :length]
        self._close_gaps()
        if not tokens:
            return empty_draft(len(rows), device)
        drafted = torch.stack(tokens, dim=1).to(device)
        return Draft(
            tokens=drafted,
            parents=torch.arange(len(tokens), device=device).expand_as(drafted),
            depths=list(range(1, len(tokens) + 1)),
            exists=torch.stack(sure[1 : len(tokens) + 1], dim=1).to(device),
            by="assistant",
        )

    def _select(self, rows: Int[Tensor, "rows"]) -> None:
        """Go on with these rows alone."""
        if len(rows) < len(self._rows):
            index = torch.isin(self._rows, rows).nonzero()[:, 0]
            if self._mask.shape[1]:
                self._cache.reorder_cache(cast(Any, index))
            self._rows, self._padding, self._read, self._mask = (
                part[index] for part in (self._rows, self._padding, self._read, self._mask)
            )

    def _close_gaps(self) -> None:
        """Move positions to the right if gaps take a share of the cache, or room that the model does not have."""
        length = self._mask.shape[1]
        unused = length - int(self._mask.sum(dim=1).max())
        if unused > (0 if self._limit is not None else MOST_UNUSED * length):
            ragged = RaggedCache(self._cache, F.pad(self._mask.bool(), (0, 1), value=True))
            ragged.align()
            self._mask = ragged.mask.long()

    def _logits(self, ids: Int[Tensor, "rows _"], seen: Bool[Tensor, "rows _"]) -> Float[Tensor, "rows vocab"]:
        """Return the logits after a chunk, of which the mask hides what is not `seen`."""
        self._mask = torch.cat([self._mask, seen.long()], dim=1)
        given = {"attention_mask": self._mask, "past_key_values": self._cache, "use_cache": True, **self._last_logits}
        if self._takes_positions:
            given["position_ids"] = (self._mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        logits = self._model(input_ids=ids.clamp(max=self._own_size - 1), **given).logits
        return logits[:, -1, : self._size]


def check_assistant(assistant: PreTrainedModel, model: PreTrainedModel) -> None:
    """Raise a ValueError if a model cannot draft for another one."""
    sizes = [one.config.get_text_config().vocab_size for one in (assistant, model)]
    own, name = unwrapped(assistant), type(unwrapped(assistant)).__name__
    if assistant.config.is_encoder_decoder or model.config.is_encoder_decoder or not own.can_generate():
        raise ValueError("an assistant drafts for a causal model, and is one; for others leave it out")
    if max(sizes) - min(sizes) > _PADDING * max(sizes):
        raise ValueError(
            f"an assistant must have the tokenizer of the model, and one has {sizes[0]} tokens, the other {sizes[1]}"
        )
    if getattr(getattr(assistant, "active_peft_config", None), "is_prompt_learning", False):
        raise ValueError(f"{LEARNT_PROMPTS}; take an assistant without them")
    takes_cache = "past_key_values" in inspect.signature(own.forward).parameters
    takes_cache &= own._supports_default_dynamic_cache()
    if not takes_cache or has_state(DynamicCache(config=assistant.config.get_text_config(decoder=True))):
        raise ValueError(f"an assistant drops tokens from a key-value cache, which {name} cannot")
