"""How long a text a model can read, and whether it has room for what it is to generate."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from hf_targets.backbones.inputs import can_look

_EARLIER_ENDS = ("eos_token_id", "stop_strings", "max_time", "stopping_criteria")
_MOST_OFFSET = 2
"""Rows that some families (OPT, BioGPT) have before the row of their first position."""


def max_positions(config: Any) -> int | None:
    """Return how many positions a model of this configuration has; None where nothing limits them."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def longest_text(model: PreTrainedModel) -> int | None:
    """Return how many tokens a text may have; RoBERTa and its kin leave the first positions unused, up to padding's."""
    limit = max_positions(model.config)
    tables: list[Any] = [module for name, module in model.named_modules() if "position" in name.rpartition(".")[2]]
    unused = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    return None if limit is None else limit - 1 - max(unused, default=-1)


def position_limit(model: PreTrainedModel) -> int | None:
    """Return how many positions a model has a row for; None where it computes them for any length, as rotary ones do.

    A configuration does not tell: families that compute positions also state the length that they were trained on.
    """
    limit = max_positions(model.config)
    return None if limit is None or _num_rows(model, limit) is None else limit


def _num_rows(model: PreTrainedModel, limit: int) -> int | None:
    """Return the rows of a model's table of positions, which has `limit` of them or a few more; None if it has none."""
    tokens, sizes = model.get_input_embeddings(), range(limit, limit + _MOST_OFFSET + 1)
    layers = (module for module in model.modules() if isinstance(module, nn.Embedding) and module is not tokens)
    tables = (table for name, table in model.named_buffers() if "pos" in name.rpartition(".")[2])
    rows = [layer.num_embeddings for layer in layers if layer.num_embeddings in sizes]
    rows += [limit for table in tables if table.ndim == 2 and len(table) == limit]
    return rows[0] if rows else None


def check_room(
    model: PreTrainedModel,
    inputs: Tensor | None,
    given: Mapping[str, Any],
    *configs: GenerationConfig | None,
    asked: str = "max_new_tokens",
) -> None:
    """Raise a ValueError if a model lacks a position for a token that `generate` will read.

    Where a text may end before its limit (an end token, stop strings, a time limit, stopping criteria), only the prompt
    is checked; `outgrown_positions_named` then tells of a text that does not end in time. Without any limit on new
    tokens Transformers generates at most as many as fit.

    Args:
        inputs: The prompt, (batch, time), if it is the first argument of `generate`.
        given: The other arguments.
        configs: What holds where `given` says nothing, in order of precedence.
        asked: The argument that a caller set the number of new tokens with, where it is not `max_length`.
    """
    limit = position_limit(model)
    settings = {name: _setting(name, given, configs) for name in ("max_new_tokens", "max_length")}
    if limit is None or not any(settings.values()):
        return
    prompts = (given.get("inputs_embeds"), inputs, given.get("inputs"), given.get("input_ids"))
    prompt = next((prompt for prompt in prompts if isinstance(prompt, Tensor)), None)
    num_read = 1 if prompt is None else _num_positions(prompt, given, configs)
    num_columns = 1 if prompt is None else prompt.shape[1]
    num_new, room = settings["max_new_tokens"] or settings["max_length"] - num_columns, limit - num_read + 1
    if num_read > limit:
        raise ValueError(f"a prompt must fit into the model's {limit} positions, got {num_read} tokens; shorten it")
    if num_new > room and not _may_end_earlier(given, configs):
        name, most = (asked, room) if settings["max_new_tokens"] else ("max_length", num_columns + room)
        raise ValueError(
            f"a prompt and what follows must fit into the model's {limit} positions, got {num_read} tokens and up to "
            f"{num_new} new ones; lower {name} to {most} or shorten the prompt"
        )


def check_positions(model: PreTrainedModel, position_ids: Tensor | None) -> None:
    """Raise a ValueError if a position is outside a model's table of positions, where it has one."""
    limit = max_positions(model.config)
    if position_ids is None or limit is None or not can_look(position_ids):
        return
    lowest, highest = torch.stack(position_ids.aminmax()).tolist()
    if (lowest < 0 or highest >= limit) and (rows := _num_rows(model, limit)) is not None:
        least = limit - rows  # -2 in OPT, whose padding has position -1
        if least <= lowest and highest < limit:
            return
        raise ValueError(
            f"position_ids must be in [{least}, {limit - 1}], the model's table of positions, got {lowest} to "
            f"{highest}; shorten the text, or one that is generated and did not end in time (max_new_tokens)"
        )


def check_source(model: PreTrainedModel, source: Any) -> None:
    """Raise a ValueError if an encoder lacks a position for a token of a source, (batch, time), padding included."""
    limit = position_limit(model)
    if limit is not None and isinstance(source, Tensor) and source.shape[1] > limit:
        raise ValueError(
            f"a source must fit into the model's {limit} positions, got {source.shape[1]} tokens; tokenize it with "
            f"truncation=True and max_length={limit}"
        )


@contextmanager
def outgrown_positions_named(model: PreTrainedModel) -> Iterator[None]:
    """Inside, a ValueError replaces the IndexError that a CPU raises at the end of a table of positions."""
    try:
        yield
    except IndexError as error:
        limit = position_limit(model)
        if limit is None or "index out of range in self" not in str(error):
            raise
        raise ValueError(
            f"a text must end within the model's {limit} positions; shorten it, or lower block_size or, where it is "
            "generated, max_new_tokens (or max_length)"
        ) from error


def _setting(name: str, given: Mapping[str, Any], configs: tuple[GenerationConfig | None, ...]) -> Any:
    said = (given.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in said if value is not None), None)


def _may_end_earlier(given: Mapping[str, Any], configs: tuple[GenerationConfig | None, ...]) -> bool:
    """Return whether anything but the limit may end a text; None among the arguments switches a setting off."""
    return any(given[name] if name in given else _setting(name, {}, configs) for name in _EARLIER_ENDS)


def _num_positions(prompt: Tensor, given: Mapping[str, Any], configs: tuple[GenerationConfig | None, ...]) -> int:
    """Return the positions that the longest row of a prompt takes; `generate` counts no padding."""
    mask, position_ids = given.get("attention_mask"), given.get("position_ids")
    if isinstance(position_ids, Tensor):
        return int(position_ids[..., -1].max()) + 1
    if mask is None and prompt.ndim == 2:
        pad, end = (_setting(name, given, configs) for name in ("pad_token_id", "eos_token_id"))
        if pad is not None and pad not in (end if isinstance(end, list) else [end]):
            mask = prompt != pad  # as Transformers tells padding without a mask
    return int(mask.sum(dim=1).max()) if isinstance(mask, Tensor) and mask.ndim == 2 else prompt.shape[1]
