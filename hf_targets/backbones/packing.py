"""Packed rows: several texts in one row, without padding; each begins where `position_ids` start again."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DataCollatorWithFlattening, PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.weight_access import execution_device, is_readable, num_rows

_EXPERTS = 1e-4
"""The share of a standard deviation by which experts round otherwise when other tokens come to them."""


def text_numbers(ids: Tensor, position_ids: Tensor | None) -> Tensor:
    """Return the number in the batch of each position's text, (batch, time), of texts without padding between them.

    A text begins with each row of ids, (batch, time), and wherever `position_ids`, (batch, time) or (1, time), do not
    increase by one.
    """
    if position_ids is None:
        return torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
    begins = F.pad(torch.diff(position_ids.expand_as(ids), dim=1) != 1, (1, 0), value=True)
    return begins.flatten().cumsum(0).view_as(ids) - 1


def num_texts(ids: Tensor, position_ids: Tensor | None) -> int:
    """Return the number of texts of ids (batch, time)."""
    return len(ids) if position_ids is None else int(text_numbers(ids, position_ids)[-1, -1]) + 1


@torch.no_grad()
def check_packing(model: nn.Module, collator: Any) -> None:
    """Raise a ValueError if a collator packs rows and the texts of a packed row read each other, tried on tokens.

    Weights that are offloaded or sharded are not tried, nor are the kernels of Flash Attention, which read
    `position_ids` themselves.
    """
    if not getattr(collator, "padding_free", isinstance(collator, DataCollatorWithFlattening)):
        return
    core: PreTrainedModel = unwrapped(model)
    base: Any = core.base_model
    if not is_readable(base) or "flash" in str(base.config._attn_implementation):
        return
    half = 4 * getattr(core.config, "text_multiple", 1)  # of a model of ours that reads whole segments
    device, apart = execution_device(base), False
    if "position_ids" in inspect.signature(base.forward).parameters:
        ids = torch.arange(2 * half, device=device)[None] % num_rows(base.get_input_embeddings())
        given = {"position_ids": torch.arange(half, device=device).repeat(2)[None], "use_cache": False}
        with without_dropout(core):
            one = base(input_ids=ids, **given)[0][:, half:].float()
            ids[:, :half] = ids[:, :half].flip(1)
            other = base(input_ids=ids, **given)[0][:, half:].float()
        apart = bool((one - other).abs().max() <= max(4 * torch.finfo(base.dtype).eps, _EXPERTS) * one.std())
    if not apart:
        raise ValueError(
            f"{type(base).__name__} does not keep the texts of a packed row apart by position_ids; pad the rows, with "
            "another data_collator or padding_free=False, or choose a model that does, such as a Llama-like one"
        )
